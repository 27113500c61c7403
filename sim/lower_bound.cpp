#include <terrace/sim/lower_bound.h>

#include <algorithm>
#include <array>

#include <terrace/sim/internal/belady.h>
#include <terrace/sim/internal/choose_plan.h>
#include <terrace/sim/internal/keep_relaxation.h>

namespace terrace {

std::string_view name_of(BoundKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"exact", "exhaustive", "flow"};
  return kNames[static_cast<size_t>(kind)];
}

LowerBound lower_bound(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier) {
  const sim::KeepProblem problem = sim::keep_problem(sim::merged_level(schedule, machine, tier));
  if (problem.equal_and_clean()) {
    const sim::CycleAverage least = sim::belady_optimum(problem);
    if (least.steady) return {BoundKind::exact, least.per_cycle()};
  }
  // A plan that is the best of those that repeat every step is the best of all only where steps leave each
  // other nothing.
  const bool wraps = std::any_of(problem.arcs.begin(), problem.arcs.end(),
                                 [&](const sim::KeepArc& arc) { return arc.last > problem.slots(); });
  if (!wraps && sim::is_small(problem)) {
    const sim::FoundPlan best = sim::choose_plan(problem);
    if (best.is_best) return {BoundKind::exhaustive, static_cast<double>(best.bytes)};
  }
  sim::KeepRelaxation relaxation(problem);
  const std::vector<sim::ArcFate> open(problem.arcs.size(), sim::ArcFate::open);
  return {BoundKind::flow, relaxation.bound(open, sim::relaxation_rounds(problem))};
}

}  // namespace terrace
