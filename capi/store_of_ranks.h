// A store that is divided over ranks: what they hold against each other before any of it is made, so that all
// of them decide alike, or none makes anything.
#pragma once

#include <memory>

#include <terrace/capi/request.h>
#include <terrace/capi/store.h>

namespace terrace::c {

// The ranks that the options name; null where the store is of one process. Throws Error(misuse) for a struct
// that cannot be read, and in the child of a fork.
terrace_ranks* ranks_of(const RequestArguments& arguments, const Subject& action);

// Where this rank is among those of the store, in the options of the request. Throws Error(misuse).
void read_ranks(const terrace_options& given, Request& request, const Subject& action);

// How what they exchange passes between host and device, in the options of the request. Throws Error(config)
// where the ranks are to gather by NCCL and cannot.
void choose_ways_of_ranks(bool is_cuda, Request& request);

// Every rank calls it. Throws Error(config) on all of them, with each difference, where they ask for
// different stores, and Error(peer) where another rank cannot make its share.
std::unique_ptr<terrace_store> create_together(terrace_ranks& ranks, const RequestArguments& arguments,
                                               const Subject& action);

}  // namespace terrace::c
