// The balancer over simulated paths: each serves its requests one after the other at a rate of its own, on a
// clock that a test advances.
#include <terrace/memory/tier/path_balancer.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace terrace::path_balancer_test {
namespace {

constexpr uint64_t kBlock = 768 * 1024;
constexpr uint64_t kMany = 1'000'000;

// Blocks that are read from where they lie, a few at a time in order, and written where the balancer says.
class Paths {
 public:
  Paths(std::vector<double> bytes_per_ns, std::vector<double> assumed_per_second, uint32_t block_count)
      : rates_(std::move(bytes_per_ns)),
        balancer_(assumed_per_second, clock_),
        queues_(rates_.size()),
        free_(rates_.size(), kMany) {
    for (uint32_t b = 0; b < block_count; ++b) place_.push_back(balancer_.choose(free_, kBlock));
  }

  PathBalancer& balancer() { return balancer_; }
  FakeClock& clock() { return clock_; }
  void set_rate(size_t path, double bytes_per_ns) { rates_[path] = bytes_per_ns; }
  void set_free(size_t path, uint64_t slots) { free_[path] = slots; }
  const std::vector<uint32_t>& place() const { return place_; }
  // The part of all blocks that lies on a path.
  double share(uint32_t path) const {
    return static_cast<double>(std::count(place_.begin(), place_.end(), path)) /
           static_cast<double>(place_.size());
  }

  // Reads and writes every block once, with at most `depth` blocks in the ring; how long it took.
  uint64_t step(uint32_t depth) {
    const uint64_t start = clock_.now_ns();
    next_ = 0;
    in_ring_ = 0;
    while (next_ < place_.size() || in_ring_ > 0) {
      while (next_ < place_.size() && in_ring_ < depth) {
        submit(place_[next_], {next_, false});
        ++next_;
        ++in_ring_;
      }
      advance_to_next();
    }
    return clock_.now_ns() - start;
  }

 private:
  struct Job {
    uint32_t block;
    bool writes;
    double left = kBlock;
  };
  void submit(uint32_t path, Job job) {
    balancer_.started(path, kBlock);
    queues_[path].push_back(job);
  }
  void advance_to_next() {
    double ns = INFINITY;
    for (size_t p = 0; p < queues_.size(); ++p) {
      if (!queues_[p].empty()) ns = std::min(ns, std::ceil(queues_[p].front().left / rates_[p]));
    }
    clock_.advance(static_cast<uint64_t>(ns));
    for (uint32_t p = 0; p < queues_.size(); ++p) {
      if (queues_[p].empty()) continue;
      Job& job = queues_[p].front();
      job.left -= ns * rates_[p];
      if (job.left > 1e-6) continue;
      const Job done = job;
      queues_[p].pop_front();
      balancer_.completed(p, kBlock);
      if (done.writes) {
        --in_ring_;
      } else {
        place_[done.block] = balancer_.choose(free_, kBlock);
        submit(place_[done.block], {done.block, true});
      }
    }
  }

  std::vector<double> rates_;
  FakeClock clock_;
  PathBalancer balancer_;
  std::vector<std::deque<Job>> queues_;
  std::vector<uint64_t> free_;
  std::vector<uint32_t> place_;
  uint32_t next_ = 0;
  uint32_t in_ring_ = 0;
};

TEST(PathBalancer, SpreadsBlocksEvenlyOverPathsOfUnknownRate) {
  FakeClock clock;
  PathBalancer balancer({0, 0, 0}, clock);
  std::vector<uint32_t> count(3);
  const std::vector<uint64_t> free{kMany, kMany, kMany};
  for (int i = 0; i < 300; ++i) ++count[balancer.choose(free, kBlock)];
  EXPECT_EQ(count, (std::vector<uint32_t>{100, 100, 100}));
}

TEST(PathBalancer, BeginsWithTheMeasuredRatesAndTakesAnUnknownOneForTheMean) {
  FakeClock clock;
  PathBalancer balancer({3e9, 1e9, 0}, clock);
  EXPECT_EQ(balancer.rates(), (std::vector<double>{3e9, 1e9, 2e9}));
  std::vector<uint32_t> count(3);
  const std::vector<uint64_t> free{kMany, kMany, kMany};
  for (int i = 0; i < 600; ++i) ++count[balancer.choose(free, kBlock)];
  EXPECT_NEAR(count[0], 300, 2);
  EXPECT_NEAR(count[1], 100, 2);
  EXPECT_NEAR(count[2], 200, 2);
}

TEST(PathBalancer, InterleavesSharesRatherThanClumpingThem) {
  FakeClock clock;
  PathBalancer balancer({3e9, 1e9}, clock);
  const std::vector<uint64_t> free{kMany, kMany};
  std::vector<uint32_t> choices;
  for (int i = 0; i < 400; ++i) choices.push_back(balancer.choose(free, kBlock));
  for (size_t i = 0; i + 8 <= choices.size(); ++i) {
    const auto slow =
        std::count(choices.begin() + static_cast<long>(i), choices.begin() + static_cast<long>(i) + 8, 1u);
    EXPECT_GE(slow, 1) << "at " << i;
    EXPECT_LE(slow, 3) << "at " << i;
  }
}

TEST(PathBalancer, TakesOnlyPathsWithFreeSlotsAndOwesAFullOneLittle) {
  FakeClock clock;
  PathBalancer balancer({0, 0}, clock);
  const std::vector<uint64_t> only_second{0, 1};
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(balancer.choose(only_second, kBlock), 1u);
  const std::vector<uint64_t> both{kMany, kMany};
  std::vector<uint32_t> count(2);
  for (int i = 0; i < 100; ++i) ++count[balancer.choose(both, kBlock)];
  EXPECT_LE(count[0], 60u);
  EXPECT_GE(count[0], 50u);
}

TEST(PathBalancer, FindsUnequalRatesThatNobodyMeasured) {
  Paths paths({3.0, 1.0}, {0, 0}, 400);
  EXPECT_NEAR(paths.share(0), 0.5, 0.01);
  for (int step = 0; step < 3; ++step) paths.step(21);
  EXPECT_NEAR(paths.share(0), 0.75, 0.03);
  EXPECT_NEAR(paths.balancer().rates()[0], 3e9, 1e8);
  EXPECT_NEAR(paths.balancer().rates()[1], 1e9, 1e8);
}

TEST(PathBalancer, FollowsAPathThatSlowsWithinTwoStepsAndComesBackWhenItRecovers) {
  Paths paths({2.0, 2.0}, {2e9, 2e9}, 400);
  for (int step = 0; step < 2; ++step) paths.step(21);
  EXPECT_NEAR(paths.share(1), 0.5, 0.05);
  paths.set_rate(1, 0.5);
  for (int step = 0; step < 2; ++step) paths.step(21);
  EXPECT_NEAR(paths.share(1), 0.2, 0.05);
  // All bytes of a step, twice, over both rates.
  const double ideal_ns = 2.0 * 400 * kBlock / 2.5;
  EXPECT_LE(static_cast<double>(paths.step(21)), ideal_ns / 0.9);
  paths.set_rate(1, 2.0);
  for (int step = 0; step < 2; ++step) paths.step(21);
  EXPECT_NEAR(paths.share(1), 0.5, 0.05);
}

TEST(PathBalancer, TakesAPathThatRestsForNoSlowerOne) {
  Paths paths({2.0, 2.0}, {2e9, 2e9}, 200);
  for (int step = 0; step < 5; ++step) {
    paths.step(21);
    paths.clock().advance(60'000'000'000);  // a minute of forward and backward
  }
  EXPECT_NEAR(paths.balancer().rates()[0], 2e9, 2e8);
  EXPECT_NEAR(paths.balancer().rates()[1], 2e9, 2e8);
  EXPECT_NEAR(paths.share(0), 0.5, 0.05);
}

TEST(PathBalancer, IsNotMovedByOneBurstOrOnePause) {
  FakeClock clock;
  PathBalancer balancer({1e9, 1e9}, clock);
  const auto serve = [&](double bytes_per_ns, int requests) {
    for (int i = 0; i < requests; ++i) {
      balancer.started(0, kBlock);
      clock.advance(static_cast<uint64_t>(kBlock / bytes_per_ns));
      balancer.completed(0, kBlock);
    }
  };
  serve(1.0, 80);
  serve(50.0, 12);  // into a write cache
  EXPECT_NEAR(balancer.rates()[0], 1e9, 1e7);
  serve(1.0, 20);
  serve(0.01, 1);  // a pause
  serve(1.0, 12);
  EXPECT_NEAR(balancer.rates()[0], 1e9, 1e7);
}

TEST(PathBalancer, SeesAPathThatStandsStillBeforeAnythingCompletes) {
  FakeClock clock;
  PathBalancer balancer({1e9, 1e9}, clock);
  for (int i = 0; i < 4; ++i) balancer.started(1, kBlock);
  clock.advance(2'000'000'000);
  EXPECT_LT(balancer.rates()[1], 1e7);
  const std::vector<uint64_t> free{kMany, kMany};
  std::vector<uint32_t> count(2);
  for (int i = 0; i < 100; ++i) ++count[balancer.choose(free, kBlock)];
  EXPECT_LE(count[1], 3u);
}

TEST(PathBalancer, KeepsProbingAPathThatWasNearlyDead) {
  Paths paths({2.0, 0.002}, {0, 0}, 200);
  for (int step = 0; step < 3; ++step) paths.step(21);
  EXPECT_LT(paths.share(1), 0.05);
  paths.set_rate(1, 2.0);
  for (int step = 0; step < 12; ++step) paths.step(21);
  EXPECT_NEAR(paths.share(1), 0.5, 0.1);
}

TEST(PathBalancer, GivesTheSameChoicesForTheSameCallsAndTimes) {
  const auto places = [] {
    Paths paths({3.0, 1.7, 0.4}, {0, 0, 0}, 150);
    std::vector<uint32_t> all;
    for (int step = 0; step < 4; ++step) {
      paths.step(13);
      all.insert(all.end(), paths.place().begin(), paths.place().end());
    }
    return all;
  };
  EXPECT_EQ(places(), places());
}

TEST(PathBalancer, CountsBytesAndBusyTimePerPath) {
  FakeClock clock;
  PathBalancer balancer({0, 0}, clock);
  balancer.started(1, 100);
  clock.advance(50);
  balancer.started(1, 20);
  clock.advance(50);
  balancer.completed(1, 100);
  balancer.completed(1, 20);
  clock.advance(1000);
  EXPECT_EQ(balancer.uses()[1].bytes, 120u);
  EXPECT_EQ(balancer.uses()[1].busy_ns, 100u);
  EXPECT_EQ(balancer.uses()[0].bytes, 0u);
}

TEST(ShareSlots, GivesOnePathEverythingAndSeveralMoreThanTheirShare) {
  const std::vector<double> one{0};
  const std::vector<double> equal{0, 0};
  const std::vector<double> unequal{3e9, 1e9};
  EXPECT_EQ(share_slots(100, one), (std::vector<uint64_t>{100}));
  EXPECT_EQ(share_slots(100, equal), (std::vector<uint64_t>{80, 80}));
  EXPECT_EQ(share_slots(100, unequal), (std::vector<uint64_t>{100, 40}));
  EXPECT_EQ(share_slots(1, equal), (std::vector<uint64_t>{1, 1}));
}

TEST(ShareSlots, LetsOthersTakeWhatAShortPathCannot) {
  const std::vector<double> equal{0, 0};
  EXPECT_EQ(share_slots(100, equal, std::vector<uint64_t>{10, kMany}), (std::vector<uint64_t>{10, 90}));
  EXPECT_EQ(share_slots(100, equal, std::vector<uint64_t>{10, 20}), (std::vector<uint64_t>{10, 20}));
}

TEST(ShareSlots, AlwaysHoldsAllSlotsWhereSpaceAllows) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 1000; ++round) {
    std::vector<double> rates(1 + random() % 5);
    for (double& rate : rates) rate = random() % 4 == 0 ? 0 : static_cast<double>(1 + random() % 1000);
    std::vector<uint64_t> most(rates.size());
    for (uint64_t& limit : most) limit = random() % 200;
    const uint64_t slots = random() % 300;
    const std::vector<uint64_t> shares = share_slots(slots, rates, most);
    const uint64_t room = std::accumulate(most.begin(), most.end(), uint64_t{0});
    EXPECT_GE(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), std::min(slots, room)) << round;
    for (size_t p = 0; p < shares.size(); ++p) EXPECT_LE(shares[p], std::min(slots, most[p])) << round;
  }
}

TEST(PathBalancer, CountsTheTimeInWhichAnyPathIsBusyOnce) {
  FakeClock clock;
  PathBalancer balancer({0, 0}, clock);
  clock.advance(1);
  balancer.started(0, kBlock);
  clock.advance(10);
  balancer.started(1, kBlock);
  clock.advance(100);
  EXPECT_EQ(balancer.busy_ns(), 110u) << "what is under way counts";
  balancer.completed(0, kBlock);
  clock.advance(1000);
  balancer.completed(1, kBlock);
  clock.advance(10000);
  EXPECT_EQ(balancer.busy_ns(), 1110u);
  EXPECT_EQ(balancer.uses()[0].busy_ns, 110u);
  EXPECT_EQ(balancer.uses()[1].busy_ns, 1100u);
}

}  // namespace
}  // namespace terrace::path_balancer_test
