#include <terrace/runtime/planning/rank_hazards.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

namespace terrace {
namespace {

constexpr double kDaySeconds = 86400;

// Standard normals in pairs, the same in every standard library.
class Normals {
 public:
  explicit Normals(uint64_t seed) : random_(seed) {}
  double greater_of_two() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    return radius * std::max(std::cos(angle), std::sin(angle));
  }
  double one() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  // Above 0, and at most 1.
  double uniform() { return static_cast<double>((random_() >> 11) + 1) * 0x1p-53; }
  std::mt19937_64 random_;
};

}  // namespace

double greatest_normal_at_most(uint32_t ranks) {
  return std::sqrt(2 * std::log(static_cast<double>(ranks)));
}

double greatest_normal_drawn(uint32_t ranks, uint32_t waits, uint64_t seed) {
  Normals normals(seed);
  double sum = 0;
  for (uint32_t wait = 0; wait < waits; ++wait) {
    double greatest = ranks % 2 == 1 ? normals.one() : -std::numeric_limits<double>::infinity();
    for (uint32_t pair = 0; pair < ranks / 2; ++pair) greatest = std::max(greatest, normals.greater_of_two());
    sum += greatest;
  }
  return sum / waits;
}

FaultPlan plan_faults(const FaultQuestion& question) {
  const double between = question.mtbf_seconds / question.ranks;
  FaultPlan plan;
  plan.failures_a_day = kDaySeconds / between;
  plan.interval_seconds = std::sqrt(2 * question.commit_seconds * between);
  plan.commits = question.commit_seconds / plan.interval_seconds;
  plan.lost_work = plan.interval_seconds / (2 * between);
  plan.restarts = question.restart_seconds / between;
  return plan;
}

}  // namespace terrace
