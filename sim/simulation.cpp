#include <terrace/sim/simulation.h>

#include <algorithm>
#include <array>

#include <terrace/sim/internal/choose_plan.h>
#include <terrace/sim/internal/step_time.h>

namespace terrace {
namespace {

constexpr std::array kPolicies = {SimPolicy::opt, SimPolicy::lru,    SimPolicy::fifo,
                                  SimPolicy::mru, SimPolicy::gemini, SimPolicy::patrickstar};
constexpr std::array<std::string_view, kPolicies.size()> kNames = {"opt", "lru",    "fifo",
                                                                   "mru", "gemini", "patrickstar"};

using sim::CacheLevel;
using sim::LevelRun;

// Where nothing repeats, so many steps stand for all.
constexpr uint64_t kMostTimedSteps = 4096;

SimTraffic mean_traffic(const sim::LevelTotals& totals, double steps, const SimLink& link) {
  SimTraffic mean;
  mean.up_bytes = static_cast<double>(totals.load_bytes) / steps;
  mean.down_bytes = static_cast<double>(totals.write_bytes) / steps;
  mean.up_count = static_cast<double>(totals.load_count) / steps;
  mean.down_count = static_cast<double>(totals.write_count) / steps;
  mean.busy_up_ns = sim::busy_ns(mean.up_bytes, mean.up_count, link.up_bytes_per_second, link.latency_ns);
  mean.busy_down_ns =
      sim::busy_ns(mean.down_bytes, mean.down_count, link.down_bytes_per_second, link.latency_ns);
  return mean;
}

LevelRun run_of(const CacheLevel& level, SimPolicy policy) {
  if (policy == SimPolicy::opt) return sim::optimal_run(level);
  return sim::replay_rule(level, *sim::make_rule(policy, level));
}

}  // namespace

std::span<const SimPolicy> sim_policies() {
  return kPolicies;
}

std::string_view name_of(SimPolicy policy) {
  return kNames[static_cast<size_t>(policy)];
}

std::optional<SimPolicy> sim_policy_from_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return kPolicies[static_cast<size_t>(found - kNames.begin())];
}

SimResult simulate(const SimSchedule& schedule, const SimMachine& machine, SimPolicy policy) {
  check_simulation(schedule, machine);
  SimResult result;
  std::vector<sim::LinkSteps> moved;
  std::vector<std::vector<uint32_t>> leads;
  std::vector<std::vector<sim::Traffic>> above = {{}};
  for (uint32_t tier = 0; tier + 1 < machine.tiers.size(); ++tier) {
    const CacheLevel level = sim::level_below(schedule, machine, tier, above);
    LevelRun run = run_of(level, policy);
    const double steps = static_cast<double>(run.cycle_count) * level.step_count;
    result.links.push_back(mean_traffic(sim::replay_log(level, run), steps, machine.links[tier]));
    result.steady = result.steady && run.steady;
    above = sim::traffic_of(level, run);
    if (tier == 0) {
      leads = sim::leads_of(level, run, static_cast<uint32_t>(schedule.uses.size()), machine.prefetch_depth);
    }
    result.period_steps = above.size();
    moved.push_back(above);
    result.log.push_back(std::move(run));
  }
  for (const SimUse& use : schedule.uses) result.compute_ns += static_cast<double>(use.compute_ns);
  result.step_ns =
      sim::step_time_ns(schedule, machine, moved, leads, std::min(result.period_steps, kMostTimedSteps));
  return result;
}

}  // namespace terrace
