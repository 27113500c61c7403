// Ways out for a run that does not fit: more memory, another tier, smaller pieces. Each of the three is
// planned, and offered only if the run fits with it. Nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/option.h>
#include <terrace/base/workers.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/transformer/model_config.h>
#include <terrace/runtime/config/train_config.h>

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
  std::string effect;  // "19.4 MiB of device memory"
  TrainConfig config;
};

// Returns the ways out for a run for which set_up_training() or require_disk_room() threw `refusal`, on the
// same `compute` (null: the simulated device); empty if none fits. In this order: the budgets alone,
// parameters and states on nvme (in host memory, where the drives are full), micro-batches of one sequence.
// The last two come with other budgets where they need them, and only if they save memory beside the first.
// A budget is the needed one, rounded up to whole MiB. A run then takes no more than `machine_bytes` of host
// memory, with the budget of a device without its own, and no more of a device with memory of its own than a
// run may have of it (ComputeFacts::OwnMemory).
std::vector<WayOut> find_ways_out(const ShortageError& refusal, const TrainConfig& config,
                                  const ModelConfig& model, Workers& workers, const ComputeDevice* compute,
                                  uint64_t machine_bytes);

}  // namespace terrace
