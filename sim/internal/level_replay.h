// Replays the cycles of one level under a rule, or under a plan of the items that stay, until the state at a
// cycle's end is one that it was in before: from there on everything repeats. The replay is deterministic;
// every decision is logged, and a log can be replayed without the rule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/sim/internal/cache_level.h>
#include <terrace/sim/internal/victim_rule.h>
#include <terrace/sim/sim_decision.h>

namespace terrace::sim {

// For each moment and each of its touches, whether the item stays until its next touch.
using KeepPlan = std::vector<std::vector<bool>>;

using LevelRun = SimLevelLog;

struct LevelTotals {
  uint64_t load_bytes = 0, write_bytes = 0;
  uint64_t load_count = 0, write_count = 0, clean_drop_count = 0;
  uint64_t bytes() const { return load_bytes + write_bytes; }
};

LevelRun replay_rule(const CacheLevel& level, VictimRule& rule);
// The plan must fit the level at each of its moments (an assertion).
LevelRun replay_plan(const CacheLevel& level, const KeepPlan& plan);

// Replays the decisions alone, asserts that each is possible and that every use finds its items, and returns
// the totals of the period.
LevelTotals replay_log(const CacheLevel& level, const LevelRun& run);

// The traffic that the period asks of the level below, a list for each step.
std::vector<std::vector<Traffic>> traffic_of(const CacheLevel& level, const LevelRun& run);

}  // namespace terrace::sim
