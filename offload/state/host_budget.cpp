#include <terrace/offload/state/host_budget.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/activations/tiered_activations.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/records/record_store.h>
#include <terrace/offload/state/commits.h>
#include <terrace/offload/state/step_boundary.h>

namespace terrace {

HostBudget::HostBudget(const RunContext& run, const Memory& memory, StepBoundary& boundary, Commits& commits,
                       std::function<void()> on_change)
    : run_(run),
      memory_(memory),
      boundary_(boundary),
      commits_(commits),
      on_change_(std::move(on_change)),
      in_force_(run.options.host_budget_bytes) {}

bool HostBudget::can_change() const {
  return run_.options.states == Placement::nvme;
}

uint64_t HostBudget::least() const {
  return of_run_bytes() + (memory_.saved != nullptr ? run_.options.saved_least_bytes : 0);
}

uint64_t HostBudget::of_run_bytes() const {
  return memory_.arena.budget_bytes() + (can_change() ? 0 : memory_.record_arena.budget_bytes());
}

void HostBudget::leave_to_saved(uint64_t bytes, uint32_t resident_chunks) {
  if (memory_.saved == nullptr) return;
  const uint64_t taken =
      of_run_bytes() + (can_change() ? uint64_t{resident_chunks} * run_.plan.record_slot_bytes : 0);
  memory_.saved->set_most(std::min(bytes - taken, run_.plan.saved_activation_bytes), taken);
}

void HostBudget::set(uint64_t bytes) {
  boundary_.require_rest("cannot change the host budget of");
  if (bytes < least())
    throw Error(ErrorKind::capacity,
                {"the host budget cannot change to", format_bytes(bytes),
                 fmt::format("this run needs {} ({} bytes) beside the optimizer states that it keeps there",
                             format_bytes(least()), least()),
                 "end the run, and go on from its last commit or checkpoint with a smaller budget"});
  // A budget above that of the run's beginning counts as that one.
  const uint64_t wish = std::min(bytes, run_.options.host_budget_bytes);
  const uint64_t slot_bytes = run_.plan.record_slot_bytes;
  const uint32_t wanted = can_change() ? static_cast<uint32_t>(std::min<uint64_t>(
                                             (bytes - least()) / slot_bytes, run_.plan.host_record_slots))
                                       : memory_.records.kept_count();
  const bool is_lowered = wish < in_force_;
  if (is_lowered) leave_to_saved(wish, wanted);
  if (wanted == memory_.records.kept_count()) {
    in_force_ = wish;
    if (!is_lowered) leave_to_saved(wish, wanted);
    return;
  }
  run_.watch.set_activity("a change of the host budget");
  has_changed_ = true;
  commits_.wait_idle();
  std::exception_ptr failure;
  try {
    memory_.records.keep(wanted, commits_.knows_cached());
  } catch (...) {
    failure = std::current_exception();
  }
  on_change_();
  // After a failure part of the change is done, and the budget in force is what the run then needs.
  in_force_ = failure == nullptr ? wish : least() + uint64_t{memory_.records.kept_count()} * slot_bytes;
  if (failure != nullptr) std::rethrow_exception(failure);
  if (!is_lowered) leave_to_saved(wish, wanted);
}

uint32_t HostBudget::resident_chunks() const {
  switch (run_.options.states) {
    case Placement::nvme:
      return memory_.records.kept_count();
    case Placement::cpu:
      return run_.plan.host_record_slots;
    case Placement::none:
      break;
  }
  return 0;
}

std::vector<TierUse> HostBudget::ledger() const {
  std::vector<TierUse> uses;
  for (const HostArena::LedgerEntry& entry : memory_.arena.ledger())
    uses.push_back({entry.purpose, entry.bytes});
  const uint64_t given_back = memory_.records.given_back_bytes();
  for (const HostArena::LedgerEntry& entry : memory_.record_arena.ledger())
    uses.push_back({entry.purpose, entry.bytes - given_back});
  if (memory_.saved != nullptr) uses.push_back({"saved activations", memory_.saved->use().host_held_bytes});
  uses.push_back({"bookkeeping of chunks", run_.plan.bookkeeping_bytes});
  return uses;
}

uint64_t HostBudget::peak_bytes() const {
  uint64_t bytes = run_.plan.bookkeeping_bytes;
  if (memory_.saved != nullptr) bytes += memory_.saved->use().host_held_bytes;
  for (const HostArena* arena : {&memory_.arena, &memory_.record_arena}) {
    for (const HostArena::LedgerEntry& entry : arena->ledger()) bytes += entry.bytes;
  }
  return bytes;
}

}  // namespace terrace
