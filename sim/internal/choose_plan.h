// How much is spent on a plan, by the size of the problem.
#pragma once

#include <cstdint>

#include <terrace/sim/internal/keep_search.h>

namespace terrace::sim {

// Small enough for branch and bound.
bool is_small(const KeepProblem& problem);
// For the relaxation of one that is not.
uint32_t relaxation_rounds(const KeepProblem& problem);
// The best plan of a small problem, a good one of another.
FoundPlan choose_plan(const KeepProblem& problem);

// The decisions of PolicyKind::opt for a level.
LevelRun optimal_run(const CacheLevel& level);

}  // namespace terrace::sim
