#include <terrace/sim/internal/choose_plan.h>

#include <algorithm>

#include <terrace/sim/internal/belady.h>
#include <terrace/sim/internal/keep_relaxation.h>

namespace terrace::sim {
namespace {

constexpr size_t kSmallArcs = 200;
constexpr uint32_t kMostNodes = 1500;
// Rounds times arcs times slots of the relaxation of a large problem: seconds at most.
constexpr uint64_t kRelaxationWork = 20'000'000;
constexpr uint64_t kMostRounds = 150;

double bytes_per_cycle(const CacheLevel& level, const LevelRun& run) {
  return static_cast<double>(replay_log(level, run).bytes()) / run.cycle_count;
}

}  // namespace

bool is_small(const KeepProblem& problem) {
  return problem.arcs.size() <= kSmallArcs;
}

uint32_t relaxation_rounds(const KeepProblem& problem) {
  const uint64_t work = problem.arcs.size() * problem.slots() + 1;
  return static_cast<uint32_t>(std::clamp<uint64_t>(kRelaxationWork / work, 1, kMostRounds));
}

FoundPlan choose_plan(const KeepProblem& problem) {
  if (is_small(problem)) return best_plan(problem, kMostNodes);
  KeepRelaxation relaxation(problem);
  const std::vector<ArcFate> open(problem.arcs.size(), ArcFate::open);
  relaxation.bound(open, relaxation_rounds(problem));
  return good_plan(problem, relaxation.shares());
}

// Belady's rule decides from use to use, so what it keeps may differ from cycle to cycle; a plan repeats.
// Either may move less.
LevelRun optimal_run(const CacheLevel& level) {
  const std::unique_ptr<VictimRule> rule = make_rule(SimPolicy::opt, level);
  LevelRun by_rule = replay_rule(level, *rule);
  const double rule_bytes = bytes_per_cycle(level, by_rule);
  const KeepProblem problem = keep_problem(level);
  if (problem.equal_and_clean() && by_rule.steady) {
    const CycleAverage least = belady_optimum(problem);
    if (least.steady && rule_bytes <= least.per_cycle()) return by_rule;
  }
  const FoundPlan plan = choose_plan(problem);
  if (static_cast<double>(plan.bytes) >= rule_bytes) return by_rule;
  return replay_plan(level, plan_of(level, problem, plan.kept));
}

}  // namespace terrace::sim
