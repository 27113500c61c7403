// What to do about a run that does not fit: which tiers are short of how much, and changes of the
// configuration with which it fits, each found by planning the run with it. Nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/budget_shortage.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/models/model_config.h>

namespace terrace {

// A configuration that fits, and what is other in it, as flags where there are some.
struct WayOut {
  std::string change;  // "--device-memory 96MiB"
  std::string effect;  // "19.4 MiB more device memory"
  TrainConfig config;
  ModelConfig model;
};

struct Shortage {
  std::vector<TierShortage> tiers;
  std::vector<WayOut> ways;  // as many as were wanted, where the machine has the memory for so many
};

// Of a run that `refusal` was thrown for by set_up_training() or require_disk_room(). Other budgets first,
// then one change or two within the budgets, then such with other budgets as well. What is suggested of a
// budget is what is needed, rounded up to whole MiB, and with it the run takes no more memory than
// `machine_bytes`.
Shortage find_ways_out(const ShortageError& refusal, const TrainConfig& config, const ModelConfig& model,
                       Workers& workers, uint64_t machine_bytes, size_t wanted = 2);

}  // namespace terrace
