// PlanPrediction: the bytes, memory and time of a run, known before anything is allocated. A step is
// predicted in the terms in which it is counted, so that both can be shown side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/runtime/planning/rank_costs.h>

namespace terrace {

// The most that a tier holds at one moment, by use.
struct PredictedTier {
  std::string name;           // "device", "host", "nvme"
  uint64_t budget_bytes = 0;  // 0: nvme has no budget but the drive
  uint64_t peak_bytes = 0;    // the sum of `uses`
  std::vector<TierUse> uses;
};

// A rate or a time on which the prediction rests, with its origin.
struct PredictedRate {
  std::string name;    // "copies between host and device"
  double value = 0;    // in `unit`
  std::string unit;    // "GB/s", "ms"
  std::string origin;  // "measured now", "terrace tune", "--disk-read"
};

struct PlanPrediction {
  UpdateMode update_mode = UpdateMode::after_backward;
  // The counters of one step, once steps repeat: bytes and counts of every link as the Offloader counts them
  // and, if has_times, the step's time by cause and the busy time of each link. Commits are not in it.
  OffloadCounters step;
  uint32_t repeats_from_step = 0;  // the first step that equals all after it; counts from 1
  std::vector<PredictedTier> tiers;

  uint64_t commit_write_bytes = 0;  // written to nvme by each commit between two steps

  bool has_times = false;  // true if the members below are known
  double forward_seconds = 0;
  double backward_seconds = 0;
  double update_seconds = 0;  // time of the update while nothing else computes
  double step_seconds = 0;
  std::vector<double> pass_seconds;  // of a stage of a pipeline, in the order of its passes
  RankUse ranks;                     // what is exchanged with other ranks, beside all else
  RankLinks links;
  Resource binding = Resource::processor;
  std::optional<ComputeUse> compute = std::nullopt;  // set if a device computes beside the processor
  std::vector<PredictedRate> rates;

  ResourceUse use() const { return compute ? resource_use(step, *compute) : resource_use(step); }
};

}  // namespace terrace
