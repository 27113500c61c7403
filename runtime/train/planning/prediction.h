// PlanPrediction: what a run will move, hold and take, known before anything is allocated. Whoever shows it
// sets it beside what was measured: a step is predicted in the terms in which it is counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/binding_resource.h>

namespace terrace {

// The most that a tier holds at one moment, and for what.
struct PredictedTier {
  std::string name;           // "device", "host", "nvme"
  uint64_t budget_bytes = 0;  // 0: nvme has none but the disk
  uint64_t peak_bytes = 0;    // the sum of uses
  std::vector<TierUse> uses;
};

// A rate or a time that the prediction rests on, and where it comes from.
struct PredictedRate {
  std::string name;    // "copies between host and device"
  double value = 0;    // in `unit`
  std::string unit;    // "GB/s", "ms"
  std::string origin;  // "measured now", "terrace tune", "--disk-read"
};

struct PlanPrediction {
  UpdateMode update_mode = UpdateMode::after_backward;
  // Of one step, once steps repeat: bytes and counts of every link as the Offloader counts them and, where
  // has_times, its time by cause and how long each link is busy. Commits are not in it.
  OffloadCounters step;
  uint32_t repeats_from_step = 0;  // the first step that is like all after it; counts from 1
  std::vector<PredictedTier> tiers;

  uint64_t commit_write_bytes = 0;  // to nvme by each commit between two steps

  bool has_times = false;  // what follows is known
  double forward_seconds = 0;
  double backward_seconds = 0;
  double update_seconds = 0;  // beside which nothing else is computed
  double step_seconds = 0;
  Resource binding = Resource::processor;
  std::optional<ComputeUse> compute = std::nullopt;  // where a device computes beside the processor
  std::vector<PredictedRate> rates;

  ResourceUse use() const { return compute ? resource_use(step, *compute) : resource_use(step); }
};

}  // namespace terrace
