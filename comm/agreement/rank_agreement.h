// What all ranks of a run must have in common, held against each other before anything is made.
#pragma once

#include <map>
#include <string>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

// Throws Error(config) on every rank where a fact is not the same on all of them, with a line for each such
// fact: its name, and its values with the ranks that have them. A fact that a rank does not have counts as
// different. Every rank calls it, and nothing of the gather lane is under way.
void require_agreement(Communicator& ranks, const std::map<std::string, std::string>& facts);

}  // namespace terrace
