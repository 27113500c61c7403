// The search for plans. good_plan() takes arcs by their shares in the relaxation and by the bytes that they
// save, and then exchanges arcs as long as that helps. best_plan() is branch and bound over the relaxation,
// for small problems. Both are deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/sim/internal/keep_problem.h>
#include <terrace/sim/internal/keep_relaxation.h>

namespace terrace::sim {

struct FoundPlan {
  std::vector<bool> kept;
  uint64_t bytes = 0;
  bool is_best = false;  // proved to be the best
};

// `shares` has, for each arc, how much of it a relaxation keeps.
FoundPlan good_plan(const KeepProblem& problem, std::span<const double> shares);

// Returns the plan of least bytes among all plans that are the same in every cycle, or, when that is not
// proved within `most_nodes` relaxations, the best one found.
FoundPlan best_plan(const KeepProblem& problem, uint32_t most_nodes);

}  // namespace terrace::sim
