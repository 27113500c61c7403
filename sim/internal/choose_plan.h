// Chooses a plan with an effort that depends on the size of the problem.
#pragma once

#include <cstdint>

#include <terrace/sim/internal/keep_search.h>

namespace terrace::sim {

// Whether the problem is small enough for branch and bound.
bool is_small(const KeepProblem& problem);
// The rounds of the relaxation of a problem that is not small.
uint32_t relaxation_rounds(const KeepProblem& problem);
// Returns the best plan found by branch and bound for a small problem, a good plan for any other.
FoundPlan choose_plan(const KeepProblem& problem);

// The decisions of SimPolicy::opt for a level.
LevelRun optimal_run(const CacheLevel& level);

}  // namespace terrace::sim
