#include <terrace/offload/watch/watched_votes.h>

#include <gtest/gtest.h>

#include <thread>

#include "comm/thread_world.h"
#include "support/patience.h"

namespace terrace::watched_votes_test {
namespace {

TEST(WatchedVotes, AreWaitedForUnderTheWatchByTheirName) {
  ThreadWorld world({.ranks = 2});
  StepWatch watch;
  watch.set_activity("the update");
  std::vector<double> losses;
  bool wish = false;
  std::thread first([&] {
    const WatchedVotes votes(RankVotes(&world.rank(0)), watch);
    losses = votes.of_all("the losses", 0.5);
    wish = votes.any("the next step", false);
  });
  uint64_t wait = 0;
  EXPECT_TRUE(testing::comes_true([&] { return (wait = watch.current().value_or(0)) != 0; }));
  EXPECT_EQ(watch.describe(wait), "the update waits for the losses (other ranks)");
  EXPECT_TRUE(watch.is_for_ranks(wait));
  const RankVotes second(&world.rank(1));
  second.of_all(1.5);
  second.any(true);
  first.join();
  EXPECT_EQ(losses, (std::vector{0.5, 1.5}));
  EXPECT_TRUE(wish);
  EXPECT_EQ(watch.current(), std::nullopt);
}

TEST(WatchedVotes, OfOneRankAreNotWaitedFor) {
  StepWatch watch;
  const WatchedVotes votes(RankVotes(nullptr), watch);
  EXPECT_EQ(votes.of_first("the times", 7), 7);
  EXPECT_EQ(votes.count(), 1u);
  EXPECT_TRUE(votes.any("the next step", true));
  const WatchedWait first(watch, word_of_ranks("the norm"));
  EXPECT_EQ(*watch.current(), 1u) << "the votes were no waits";
}

}  // namespace
}  // namespace terrace::watched_votes_test
