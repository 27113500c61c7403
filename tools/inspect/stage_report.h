// What `terrace plan --stages` and `--best-stages` print, as aligned text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/planning/pipeline_plan.h>

namespace terrace {

struct StagesReport {
  std::string model;
  PipelinePlan plan;
  uint64_t tokens_per_step = 0;
  std::string operations;           // how they were measured; empty: not at all
  std::string no_times;             // why there are no times; empty if there are
  bool network_is_unknown = false;  // of different hosts, so that times are without it
};
// What a step is bound by.
std::string words_of_binding(const PlanPrediction& prediction);
std::string words_of_binding(const PipelinePlan& plan);
std::string stages_text(const StagesReport& report);
std::string stages_json(const StagesReport& report);

// One way to use all ranks.
struct StagesChoice {
  uint32_t stages = 1;  // 1: every rank has a part of all layers (ZeRO-3)
  uint32_t data_ranks = 1;
  std::string refusal;      // why it does not fit; empty if it does
  uint64_t host_bytes = 0;  // that a host gets or sends in a step, the more of the two
  bool has_times = false;
  double step_seconds = 0;
  std::string bound_by;
};
// Where the pipeline with a stage for each rank and ZeRO-3 take as long.
struct StagesCrossing {
  bool is_known = false;       // false: one of the two does not fit, or has no times
  double host_bytes = 0;       // that a host receives in a second; 0: one of the two is faster at every rate
  bool pipeline_wins = false;  // below that rate, or at every one
};
struct StagesComparison {
  std::string model;
  uint32_t ranks = 1;
  uint64_t tokens_per_step = 0;
  std::vector<StagesChoice> choices;  // the fastest first
  StagesCrossing crossing;
  std::string no_times;
  bool network_is_unknown = false;
};
std::string comparison_text(const StagesComparison& comparison);
std::string comparison_json(const StagesComparison& comparison);

}  // namespace terrace
