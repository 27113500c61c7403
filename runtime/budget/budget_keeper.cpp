#include <terrace/runtime/budget/budget_keeper.h>

#include <fmt/format.h>

#include <string>

namespace terrace {

BudgetKeeper::BudgetKeeper(Offloader& offloader, BetweenSteps& between, Log& log)
    : offloader_(offloader), between_(between), log_(log) {}

void BudgetKeeper::watch(const std::filesystem::path& system_root, const Clock& clock) {
  pressure_.emplace(system_root, clock);
  wanted_bytes_ = offloader_.budget().in_force();
  wanted_chunks_ = offloader_.budget().resident_chunks();
}

// With room for the states of so many chunks, beside what the plan needs in any case.
uint64_t BudgetKeeper::bytes_for(uint32_t chunks) const {
  if (chunks >= wanted_chunks_) return wanted_bytes_;
  return offloader_.budget().least() + uint64_t{chunks} * offloader_.plan().record_slot_bytes;
}

HostBudgetChange BudgetKeeper::change(uint64_t bytes) {
  between_.finish_update();  // what it fails with is no answer to this
  HostBudgetChange change;
  between_.count([&] { change = change_host_budget(offloader_, bytes); });
  return change;
}

HostBudgetChange BudgetKeeper::set(uint64_t bytes) {
  HostBudgetChange changed = change(bytes);
  // Memory pressure gives back what it took, and no more than that.
  if (!changed.refusal) {
    wanted_bytes_ = changed.budget_bytes;
    wanted_chunks_ = changed.kept_chunks;
  }
  return changed;
}

bool BudgetKeeper::look() {
  const MemoryPlan& plan = offloader_.plan();
  if (!pressure_ || plan.record_slot_bytes == 0) return false;
  const uint32_t kept = offloader_.budget().resident_chunks();
  const auto decision = pressure_->look({kept, wanted_chunks_, plan.record_slot_bytes});
  if (!decision) return false;
  const HostBudgetChange changed = change(bytes_for(decision->keep_chunks));
  const std::string line =
      fmt::format("memory pressure: {}; {} of {} chunks of optimizer states in host memory now, {} before",
                  decision->reason, changed.kept_chunks, plan.record_chunks, kept);
  if (changed.kept_chunks < kept) {
    log_.warning(line);
  } else {
    log_.info(line);
  }
  return changed.kept_chunks != kept;
}

}  // namespace terrace
