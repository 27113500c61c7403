#include <terrace/comm/agreement/rank_clock.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/thread_world.h"
#include "support/rank_threads.h"

namespace terrace::rank_clock_test {
namespace {

constexpr uint64_t kHourNs = 3'600'000'000'000;

// Rank r's host is r hours ahead.
class AheadClock final : public Clock {
 public:
  explicit AheadClock(uint64_t hours) : ahead_ns_(hours * kHourNs) {}
  uint64_t now_ns() const override { return clock_.now_ns() + ahead_ns_; }

 private:
  const SteadyClock clock_;
  const uint64_t ahead_ns_;
};

TEST(RankClock, IsThatOfTheFirstRankWithinItsError) {
  constexpr uint32_t kRanks = 3;
  ThreadWorld world({.ranks = kRanks});
  std::vector<FirstClock> clocks(kRanks);
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         rank.set_places({{0, 0, 0, "a", 1}, {1, 1, 0, "b", 2}, {2, 0, 1, "a", 3}});
         const uint64_t hours = rank.rank() == 1 ? 1 : 0;
         clocks[rank.rank()] = clock_of_first(rank, AheadClock(hours));
       }))
    EXPECT_EQ(failure, "");
  EXPECT_EQ(clocks[0].error_ns, 0u);
  EXPECT_EQ(clocks[2].error_ns, 0u);
  EXPECT_EQ(clocks[2].now_ns, clocks[0].now_ns);
  const uint64_t ahead = clocks[1].now_ns - kHourNs;
  EXPECT_LE(std::max(ahead, clocks[0].now_ns) - std::min(ahead, clocks[0].now_ns), clocks[1].error_ns);
  EXPECT_LT(clocks[1].error_ns, kHourNs);
}

}  // namespace
}  // namespace terrace::rank_clock_test
