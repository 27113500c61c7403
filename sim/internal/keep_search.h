// Finding plans. A good one: arcs are taken by what the relaxation thinks of them and by what they save, and
// then exchanged as long as that helps. The best one: branch and bound over the relaxation, for small
// problems. Both are deterministic.
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
  bool is_best = false;  // proved to be
};

// `shares`: of each arc, how much a relaxation keeps of it.
FoundPlan good_plan(const KeepProblem& problem, std::span<const double> shares);

// The least of all plans that are the same in every cycle; where that is not found within `most_nodes`
// relaxations, the least that was seen.
FoundPlan best_plan(const KeepProblem& problem, uint32_t most_nodes);

}  // namespace terrace::sim
