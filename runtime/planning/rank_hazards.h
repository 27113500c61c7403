// What many ranks lose to the slowest of them and to failures. Pure arithmetic and seeded draws.
#pragma once

#include <cstdint>

namespace terrace {

// By how many standard deviations the greatest of so many normal draws is above their mean, at most in the
// mean: sqrt(2 ln n). Boucheron, Lugosi, Massart, Concentration Inequalities (2013), theorem 2.5. It is
// approached as n grows, from above.
double greatest_normal_at_most(uint32_t ranks);
// The mean of `waits` such greatest draws. Of a seed it is always the same.
double greatest_normal_drawn(uint32_t ranks, uint32_t waits, uint64_t seed);

// FaultPlan: how often to commit where ranks fail.
struct FaultQuestion {
  uint32_t ranks = 1;
  double mtbf_seconds = 0;     // of a rank
  double commit_seconds = 0;   // for which training waits
  double restart_seconds = 0;  // behind a failure
};
struct FaultPlan {
  double failures_a_day = 0;  // of all ranks
  // The time between commits with which least is lost, to first order: sqrt(2 commit MTBF / ranks). Young, A
  // first order approximation to the optimum checkpoint interval, CACM 17 (1974). It holds while a commit is
  // short beside MTBF / ranks.
  double interval_seconds = 0;
  // Parts of the time, which may be all of it and more.
  double commits = 0;
  double lost_work = 0;
  double restarts = 0;
  double lost() const { return commits + lost_work + restarts; }
};
FaultPlan plan_faults(const FaultQuestion& question);

}  // namespace terrace
