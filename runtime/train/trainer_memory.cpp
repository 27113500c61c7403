// The host memory of a Trainer while it trains: as somebody asks for it, and as the system has it.
#include <fmt/format.h>

#include <utility>

#include <terrace/base/units.h>
#include <terrace/runtime/train/internal/trainer_parts.h>

namespace terrace {

// With room for the states of so many chunks, beside what the plan needs in any case.
uint64_t Trainer::Parts::budget_for(uint32_t chunks) const {
  if (chunks >= wanted_chunks) return wanted_host_bytes;
  return offloader.budget().least() + uint64_t{chunks} * offloader.plan().record_slot_bytes;
}

HostBudgetChange Trainer::Parts::change_host_budget(uint64_t bytes) {
  finish_update_between_steps();  // what it fails with is no answer to this
  HostBudgetChange change;
  const OffloadCounters before = offloader.counters();
  try {
    offloader.budget().set(bytes);
  } catch (const Error& error) {
    // Everything is where it was, or as far on its way as is said.
    if (error.kind() != ErrorKind::capacity) throw;
    change.refusal = error;
  }
  const OffloadCounters moved = offloader.counters() - before;
  change.ns = moved.time.total_ns();
  kept_moved = kept_moved + moved;
  change.budget_bytes = offloader.budget().in_force();
  change.kept_chunks = offloader.budget().resident_chunks();
  change.read_bytes = moved.cache_read_bytes;
  change.write_bytes = moved.cache_write_bytes;
  return change;
}

HostBudgetChange Trainer::set_host_budget(uint64_t bytes) {
  HostBudgetChange change = parts_->change_host_budget(bytes);
  // Memory pressure gives back what it took, and no more than that.
  if (!change.refusal) {
    parts_->wanted_host_bytes = change.budget_bytes;
    parts_->wanted_chunks = change.kept_chunks;
  }
  return change;
}

bool Trainer::look_after_memory() {
  Parts& p = *parts_;
  if (!p.pressure || p.offloader.plan().record_slot_bytes == 0) return false;
  const uint32_t kept = p.offloader.budget().resident_chunks();
  const auto decision = p.pressure->look({kept, p.wanted_chunks, p.offloader.plan().record_slot_bytes});
  if (!decision) return false;
  const HostBudgetChange change = p.change_host_budget(p.budget_for(decision->keep_chunks));
  const std::string line =
      fmt::format("memory pressure: {}; {} of {} chunks of optimizer states in host memory now, {} before",
                  decision->reason, change.kept_chunks, p.offloader.plan().record_chunks, kept);
  if (change.kept_chunks < kept) {
    p.log.warning(line);
  } else {
    p.log.info(line);
  }
  return change.kept_chunks != kept;
}

}  // namespace terrace
