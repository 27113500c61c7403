// What to do about a run that does not fit: which tiers are short of how much, and changes of the
// configuration with which it fits, each found by planning the run with it. Nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/model/transformer/model_config.h>

namespace terrace {

// What is other in a configuration.
struct ChangedOption {
  std::string option;  // "TerraceConfig::device_memory_bytes"
  std::string value;   // "96MiB", as a configuration has it
  bool operator==(const ChangedOption&) const = default;
};

// A configuration that fits, and how it is asked for.
struct WayOut {
  std::vector<ChangedOption> changes;
  std::string effect;  // "19.4 MiB more device memory"
  TrainConfig config;
  ModelConfig model;
};

struct Shortage {
  std::vector<TierShortage> tiers;
  std::vector<WayOut> ways;  // as many as were wanted, where the machine has the memory for so many
};

// What ways out may take, and how many are looked for.
struct WaysOutBounds {
  uint64_t machine_bytes = 0;  // of the host, in which a device without memory of its own has its budget too
  size_t wanted = 2;
};

// Of a run that `refusal` was thrown for by set_up_training() or require_disk_room(), on the same `compute`
// (null: the simulated device). Other budgets first, then one change or two within the budgets, then such
// with other budgets as well. What is suggested of a budget is what is needed, rounded up to whole MiB; with
// it the run takes no more memory than the bounds have and, of a device with memory of its own, than what is
// to be had of that (ComputeFacts::OwnMemory).
Shortage find_ways_out(const ShortageError& refusal, const TrainConfig& config, const ModelConfig& model,
                       Workers& workers, const ComputeDevice* compute, const WaysOutBounds& bounds);

}  // namespace terrace
