// What `terrace plan` says of many ranks: what their messages cost, which term rules a step, and what they
// lose to the slowest of them and to failures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/base/text/json_writer.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/runtime/planning/rank_costs.h>
#include <terrace/runtime/planning/rank_hazards.h>

#include "inspect/rank_flags.h"

namespace terrace {

// By one way of spreading messages.
struct ChunkTerms {
  RankTerms gather;
  RankTerms exchange;
};

struct Stragglers {
  double jitter = 0;
  uint64_t seed = 0;
  uint32_t waits = 0;       // that were drawn
  double drawn = 0;         // so many times as long do operations take
  double at_most = 0;       // the same by the closed form
  double step_seconds = 0;  // with those that were drawn
};

struct Faults {
  FaultPlan plan;
  double commit_seconds = 0;
  double restart_seconds = 0;
};

struct RankOutlook {
  bool has_terms = false;  // false: one rank, or a network of unknown rates
  double chunk_bytes = 0;
  ChunkTerms direct, doubling;
  RankTerms step;  // all of a step, one after the other
  std::string_view ruling;
  std::string_view ruling_exchanges;  // of what ranks exchange alone
  std::optional<Stragglers> stragglers;
  std::optional<Faults> faults;
};

// `prediction` has times. Throws Error(config) where --mtbf is given and nothing says how long a commit
// takes.
RankOutlook look_at_ranks(const TrainConfig& config, const TrainingSetup& setup,
                          const PlanPrediction& prediction, const MachineRates& rates,
                          const RankFlags& flags);
// Lines, or nothing.
std::string outlook_text(const RankOutlook& outlook);
void write_outlook(JsonWriter& json, const RankOutlook& outlook);

}  // namespace terrace
