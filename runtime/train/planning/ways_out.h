// Ways out for a run that does not fit: the shortage of each tier, and changes of the configuration with
// which the run fits. Each change is found by planning the run with it. Nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/option.h>
#include <terrace/base/workers.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/model/transformer/model_config.h>

namespace terrace {

// A changed option of a configuration.
struct ChangedOption {
  Option option;
  std::string value;  // "96MiB", as a configuration writes it
  bool operator==(const ChangedOption&) const = default;
};

// A configuration that fits, and the changes that lead to it.
struct WayOut {
  std::vector<ChangedOption> changes;
  std::string effect;  // "19.4 MiB more device memory"
  TrainConfig config;
  ModelConfig model;
};

struct Shortage {
  std::vector<TierShortage> tiers;
  std::vector<WayOut> ways;  // as many as wanted, if the machine has the memory for them
};

// The limits of ways out, and how many are looked for.
struct WaysOutBounds {
  uint64_t machine_bytes = 0;  // host memory, with the budget of a device without its own
  size_t wanted = 2;
};

// Finds ways out for a run for which set_up_training() or require_disk_room() threw `refusal`, on the same
// `compute` (null: the simulated device). It tries other budgets first, then one or two changes within the
// budgets, then changes with other budgets. A suggested budget is the needed one, rounded up to whole MiB.
// The run then takes no more memory than the bounds and, of a device with memory of its own, than its budget
// (ComputeFacts::OwnMemory).
Shortage find_ways_out(const ShortageError& refusal, const TrainConfig& config, const ModelConfig& model,
                       Workers& workers, const ComputeDevice* compute, const WaysOutBounds& bounds);

}  // namespace terrace
