// What `terrace plan` says, in its two forms: aligned text and JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/train/planning/predict.h>
#include <terrace/runtime/train/planning/ways_out.h>

namespace terrace {

// What a run writes to its drives.
struct DriveWrites {
  uint64_t step_bytes = 0;  // by a step, commits apart
  double bytes_a_day = 0;   // with commits; 0: not known
  double days = 0;          // until the endurance is used up; 0: not known
};
// `endurance_terabytes` may be written to the drives, as they are rated; 0: not known.
DriveWrites drive_writes(const TrainConfig& config, const PlanPrediction& prediction,
                         double endurance_terabytes);

// One way to split a run over the tiers.
struct Split {
  std::string flags;    // "--offload-param cpu --offload-optimizer nvme"
  std::string refusal;  // why it does not fit; empty when it does
  PlanPrediction prediction;
};

struct PlanReport {
  std::string model;
  TrainerPlan plan;
  PlanPrediction prediction;
  std::string operations;  // what was measured of them; empty: nothing
  std::string no_times;    // why there are none; empty when there are
  DriveWrites writes;
  double endurance_terabytes = 0;  // 0: not given
  std::string rates;               // of nvme, that times were computed with; empty: none
  std::vector<Split> splits;       // fastest first
};
std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);
// Of a run that does not fit: `reason`, with what is missing and ways out.
Error with_ways_out(const Error& reason, const Shortage& shortage);
// `splits`: those of --best, or none.
std::string shortage_json(const Shortage& shortage, const std::string& reason, std::span<const Split> splits);
// `rates`: what the times were computed with; may be empty.
std::string splits_text(std::span<const Split> splits, const std::string& rates);

}  // namespace terrace
