// The report of `terrace plan`, as aligned text and as JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/ways_out.h>

#include "inspect/rank_outlook.h"
#include "train/drive_wear.h"

namespace terrace {

// One way to split a run over the tiers.
struct Split {
  std::string flags;    // "--offload-param cpu --offload-optimizer nvme"
  std::string refusal;  // why it does not fit; empty if it does
  PlanPrediction prediction;
};

struct PlanReport {
  std::string model;
  TrainerPlan plan;
  PlanPrediction prediction;
  std::string operations;  // how operations were measured; empty: not at all
  std::string no_times;    // why there are no times; empty if there are
  DriveWrites writes;
  double endurance_terabytes = 0;  // 0: not given
  uint32_t ranks = 1;
  uint32_t ranks_per_host = 1;
  RankOutlook outlook;              // if there are times
  bool network_is_unknown = false;  // of different hosts, so that times are without it
  std::string rates;                // the rates of nvme on which the times rest; empty: none
  std::vector<Split> splits;        // fastest first
  uint64_t tokens_per_step = 0;
  uint64_t steps = 0;                 // of the run
  uint64_t disk_bytes = 0;            // of --disk; 0: not given
  std::string config_file;            // that trains with a placement which the plan has chosen; else empty
  std::vector<TierShortage> missing;  // what the machine of --disk lacks: the plan is for one that has it
};
// The peaks of the tiers and the bytes of the links, as tables and as members of an object.
std::string memory_table(const PlanPrediction& prediction);
std::string link_table(const PlanPrediction& prediction);
void write_tiers(JsonWriter& json, const PlanPrediction& prediction);
void write_links(JsonWriter& json, const PlanPrediction& prediction);

std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);
// Returns the error of a run that does not fit: `reason`, with the ways out as its advice if there are any.
Error with_ways_out(const Error& reason, std::span<const WayOut> ways);
// `splits` are those of --best, or none.
std::string shortage_json(const ShortageError& reason, std::span<const WayOut> ways,
                          std::span<const Split> splits);
// `rates` names the rates on which the times rest; may be empty.
std::string splits_text(std::span<const Split> splits, const std::string& rates);

}  // namespace terrace
