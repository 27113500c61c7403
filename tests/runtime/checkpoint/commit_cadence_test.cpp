#include <terrace/runtime/checkpoint/commit_cadence.h>

#include <gtest/gtest.h>

namespace terrace::commit_cadence_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(CommitCadence, CountsStepsFromTheLastCommit) {
  FakeClock clock;
  CommitCadence cadence(3, 0, clock);
  EXPECT_FALSE(cadence.due(0));
  EXPECT_FALSE(cadence.due(2));
  EXPECT_TRUE(cadence.due(3));
  EXPECT_TRUE(cadence.due(5));
  cadence.begun(5);
  EXPECT_FALSE(cadence.due(7));
  EXPECT_TRUE(cadence.due(8));
}

TEST(CommitCadence, CountsSecondsFromTheLastCommit) {
  FakeClock clock;
  clock.advance(7 * kSecondNs);
  CommitCadence cadence(0, 10, clock);
  clock.advance(10 * kSecondNs - 1);
  EXPECT_FALSE(cadence.due(4));
  clock.advance(1);
  EXPECT_TRUE(cadence.due(4));
  EXPECT_FALSE(cadence.due(0));  // nothing was done since
  cadence.begun(4);
  clock.advance(10 * kSecondNs);
  EXPECT_FALSE(cadence.due(4));
  EXPECT_TRUE(cadence.due(5));
}

TEST(CommitCadence, TakesWhatComesFirstAndNeverWhenNothingDecides) {
  FakeClock clock;
  const CommitCadence both(100, 10, clock);
  const CommitCadence never(0, 0, clock);
  EXPECT_TRUE(both.due(100));
  clock.advance(1000 * kSecondNs);
  EXPECT_TRUE(both.due(1));
  EXPECT_FALSE(never.due(1'000'000));
  const CommitCadence beyond(0, UINT64_MAX, clock);
  EXPECT_FALSE(beyond.due(1));
}

}  // namespace
}  // namespace terrace::commit_cadence_test
