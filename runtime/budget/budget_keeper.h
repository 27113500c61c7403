// BudgetKeeper keeps the host budget of a run while it trains: as a caller asks for it, and as the system has
// the memory. It must never change a number of the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <terrace/base/log.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/budget/between_steps.h>
#include <terrace/runtime/budget/memory_pressure.h>
#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

// Used between two steps.
class BudgetKeeper {
 public:
  // All references outlive this; `between` is of the same offloader.
  BudgetKeeper(Offloader& offloader, BetweenSteps& between, Log& log);

  // From now on the budget follows the memory of the machine whose proc/ and sys/ lie in `system_root`.
  void watch(const std::filesystem::path& system_root, const Clock& clock);
  // Does what Trainer::set_host_budget() does.
  HostBudgetChange set(uint64_t bytes);
  // Does what Trainer::look_after_memory() does.
  bool look();

 private:
  uint64_t bytes_for(uint32_t chunks) const;
  HostBudgetChange change(uint64_t bytes);

  Offloader& offloader_;
  BetweenSteps& between_;
  Log& log_;
  std::optional<MemoryPressure> pressure_;  // null: memory is never given back
  // The host budget without pressure, and the chunks whose states then have room.
  uint64_t wanted_bytes_ = 0;
  uint32_t wanted_chunks_ = 0;
};

}  // namespace terrace
