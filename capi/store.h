// terrace_store: an Offloader with all that it stands on, and the gate that every call goes through. The gate
// keeps two threads apart, remembers a failure, and closes in the child of a fork. Of a store that is divided
// over ranks it names the rank that a failure comes of, and tells the others of a failure that stays.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <terrace.h>
#include <terrace/base/workers.h>
#include <terrace/capi/callback_log.h>
#include <terrace/capi/device.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/request.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/checkpoint/passed_sets.h>

namespace terrace::c {

// What the program has open; the Offloader checks what lies within.
enum class Open : uint8_t { nothing, step, evaluation };

}  // namespace terrace::c

struct terrace_run;

struct terrace_store {
  explicit terrace_store(const terrace::c::Request& request);
  ~terrace_store();
  // What other numbers of ranks have left goes once a commit of this store is durable.
  void see_commits() noexcept;

  const uint32_t forks;  // terrace::c::forks() of the process that created it
  terrace::c::CallbackLog log;
  terrace::FlatSpace space;
  terrace::Workers workers;
  terrace::c::MadeDevice device;
  const bool is_cuda;
  const int ordinal;
  const bool skips_unused;
  const std::vector<bool> are_words;  // Request::are_words
  const uint32_t retained_commits;
  terrace_ranks* const ranks;        // null: of one process
  terrace_ranks* const model_ranks;  // Request::model_ranks
  const std::shared_ptr<terrace::NcclExchange> nccl;
  std::unique_ptr<terrace::Offloader> offloader;

  std::atomic<bool> is_busy = false;
  std::unique_ptr<terrace_error, void (*)(terrace_error*)> failure{nullptr, terrace_error_free};
  terrace::c::Open open = terrace::c::Open::nothing;
  bool is_filled = false;  // there are values to train and to read
  std::string taken_up_text;
  const uint64_t tensors;  // terrace::c::hash_of_streams()
  uint64_t commit_number;  // of the next commit
  terrace::PassedSets passed;
  bool keeps_tier = true;
  terrace::OffloadCounters step_start;  // at the last begin of a step
  terrace_run* run = nullptr;           // that follows it

  // Those that hear of this store.
  std::array<terrace_ranks*, 2> all_ranks() const { return {ranks, model_ranks}; }

 private:
  void go_on_from(const terrace::StateSet& set);
};

namespace terrace::c {

// How many forks lie between the process that first asked and this one. A system call on every lease would
// take a third of its time.
uint32_t forks();

// Which failures of a call leave the store as it was, beside those of kind misuse and config.
// A shortage is of kind capacity and says the least that would do.
enum class Harmless : uint8_t { no_other, shortage, capacity, all };
// Whether a store that has failed answers the call.
enum class AfterFailure : uint8_t { refuse, answer };

// Claims the store for the calling thread: null, or why it cannot be had.
terrace_error* enter(terrace_store* store, const Names& call, AfterFailure after) noexcept;
// Gives it back. A failure that is not harmless stays with the store.
void leave(terrace_store& store, const terrace_error* failure, Harmless harmless) noexcept;

// Of a store over ranks, as terrace_ranks::throw_death_behind().
void throw_death_behind(const Error& failure, const terrace_store& store);

// Runs a call of the C API on a store: null, or its failure. `call` is the function.
template <typename Action>
terrace_error* in_store(terrace_store* store, const Names& call, Action action,
                        Harmless harmless = Harmless::no_other,
                        AfterFailure after = AfterFailure::refuse) noexcept {
  if (terrace_error* refused = enter(store, call, after)) return refused;
  terrace_error* failure = answer([&] {
    try {
      action(*store);
    } catch (const Error& error) {
      throw_death_behind(error, *store);
      throw;
    }
  });
  leave(*store, failure, harmless);
  return failure;
}

// Throws Error(misuse) unless nothing is open and there are values. `action` is "cannot begin a step".
void require_rest(const terrace_store& store, const Subject& action);
void require_values(const terrace_store& store, const Subject& action);

}  // namespace terrace::c
