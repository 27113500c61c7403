#include <gtest/gtest.h>

#include <vector>

#include <terrace/offload/options/step_rounds.h>

namespace terrace::step_rounds_test {
namespace {

// For any number of ranks, more than there are micro-batches included.
TEST(StepRounds, GoThroughEveryMicroBatchOnceAndInOrder) {
  for (uint32_t micro_batches = 1; micro_batches <= 12; ++micro_batches) {
    for (uint32_t ranks = 1; ranks <= 14; ++ranks) {
      const StepRounds rounds{micro_batches, ranks};
      std::vector<uint32_t> seen;
      for (uint32_t round = 0; round < rounds.count(); ++round) {
        EXPECT_TRUE(rounds.has(round, 0)) << "no round is without data";
        for (uint32_t rank = 0; rank < ranks; ++rank)
          if (rounds.has(round, rank)) seen.push_back(rounds.number(round, rank));
      }
      ASSERT_EQ(seen.size(), micro_batches);
      for (uint32_t j = 0; j < micro_batches; ++j) EXPECT_EQ(seen[j], j);
      EXPECT_TRUE(rounds.is_last(rounds.count() - 1));
    }
  }
}

TEST(StepRounds, AreTheMicroBatchesOfOneRank) {
  const StepRounds rounds{7};
  EXPECT_EQ(rounds.count(), 7u);
  EXPECT_EQ(rounds.number(5, 0), 5u);
}

}  // namespace
}  // namespace terrace::step_rounds_test
