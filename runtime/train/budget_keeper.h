// BudgetKeeper: keeps the host budget of a run while it trains: as somebody asks for it, and as the system
// has the memory. It must never change a number of the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <terrace/base/log.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/train/between_steps.h>
#include <terrace/runtime/train/memory_pressure.h>
#include <terrace/runtime/train/trainer_reports.h>

namespace terrace {

// Used between two steps.
class BudgetKeeper {
 public:
  // All references outlive this; `between` is of the same offloader.
  BudgetKeeper(Offloader& offloader, BetweenSteps& between, Log& log);

  // From now on the budget follows the memory of the machine whose proc/ and sys/ lie in `system_root`.
  void watch(const std::filesystem::path& system_root, const Clock& clock);
  // As Trainer::set_host_budget().
  HostBudgetChange set(uint64_t bytes);
  // As Trainer::look_after_memory().
  bool look();

 private:
  uint64_t bytes_for(uint32_t chunks) const;
  HostBudgetChange change(uint64_t bytes);

  Offloader& offloader_;
  BetweenSteps& between_;
  Log& log_;
  std::optional<MemoryPressure> pressure_;  // null where nothing is to be given back, or must not be
  // The host budget when there is no pressure, and the chunks whose states it has room for.
  uint64_t wanted_bytes_ = 0;
  uint32_t wanted_chunks_ = 0;
};

}  // namespace terrace
