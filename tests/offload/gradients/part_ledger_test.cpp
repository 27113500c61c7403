// Which part of a gradient is due: behind all earlier micro-batches of its tensors, those that are absent
// too, whatever order the parts come in.
#include <terrace/offload/gradients/part_ledger.h>

#include <gtest/gtest.h>

namespace terrace::part_ledger_test {
namespace {

// Two tensors of two tiles each in one chunk, of one rank's tiles; three micro-batches of three ranks.
class PartLedgerTest : public ::testing::Test {
 protected:
  PartLedgerTest()
      : space_({{"one", {2 * kTileElements}, DataType::fp32, true, 0, 1},
                {"two", {2 * kTileElements}, DataType::fp32, true, 0, 1}},
               4 * kTileElements),
        shards_(space_, 0, 1) {}
  static OwnPart part(uint32_t tensor, uint32_t micro_batch) {
    return {ChunkId{0}, micro_batch, tensor * 2 * kTileElements, 2 * kTileElements};
  }
  static OwnPart both(uint32_t micro_batch) { return {ChunkId{0}, micro_batch, 0, 4 * kTileElements}; }

  const FlatSpace space_;
  const ChunkShards shards_;
  const StepRounds rounds_{3, 3};
  std::vector<GradientRun> runs_;
};

TEST_F(PartLedgerTest, TakesPartsInTheOrderOfMicroBatches) {
  PartLedger ledger(shards_, rounds_);
  ledger.begin_step();
  EXPECT_FALSE(ledger.is_due(part(0, 1), {}));
  EXPECT_TRUE(ledger.is_due(part(0, 0), {}));
  const GradientLanding first = ledger.take(part(0, 0), runs_);
  EXPECT_TRUE(first.begins);
  EXPECT_FALSE(first.completes);
  EXPECT_TRUE(first.runs.front().is_first);
  EXPECT_TRUE(ledger.is_due(part(0, 1), {}));
  EXPECT_FALSE(ledger.is_due(both(1), {})) << "the other tensor's first one is still to come";
  EXPECT_TRUE(ledger.take(part(1, 0), runs_).completes);
  EXPECT_TRUE(ledger.is_due(both(1), {}));
  EXPECT_FALSE(ledger.take(both(1), runs_).ends);
  EXPECT_TRUE(ledger.take(both(2), runs_).ends);
}

TEST_F(PartLedgerTest, PassesByWhatIsAbsentWhenItsMicroBatchHasEnded) {
  PartLedger ledger(shards_, rounds_);
  ledger.begin_step();
  EXPECT_FALSE(ledger.is_due(part(0, 2), {}));
  ledger.end_micro_batch(1);
  EXPECT_FALSE(ledger.is_due(part(0, 2), {})) << "the first one may come";
  ledger.end_micro_batch(0);
  EXPECT_TRUE(ledger.is_due(part(0, 2), {}));
}

// It has come before its micro-batch ended, and waits for memory.
TEST_F(PartLedgerTest, DoesNotPassByWhatHasCome) {
  PartLedger ledger(shards_, rounds_);
  ledger.begin_step();
  const std::vector<OwnPart> others = {part(0, 2), part(0, 0)};
  ledger.end_micro_batch(0);
  ledger.end_micro_batch(1);
  EXPECT_FALSE(ledger.is_due(part(0, 2), others));
  EXPECT_TRUE(ledger.is_due(part(0, 0), others));
}

TEST_F(PartLedgerTest, LeavesTheRestAsZeros) {
  PartLedger ledger(shards_, rounds_);
  ledger.begin_step();
  ledger.take(part(0, 0), runs_);
  EXPECT_FALSE(ledger.have_all_ended());
  for (uint32_t rank = 0; rank < 3; ++rank) ledger.end_micro_batch(rank);
  EXPECT_TRUE(ledger.have_all_ended());
  const GradientLanding rest = ledger.take_rest(ChunkId{0}, runs_);
  EXPECT_EQ(rest.micro_batch, 2u);
  EXPECT_TRUE(rest.ends);
  EXPECT_FALSE(rest.begins);
  ASSERT_EQ(rest.runs.size(), 2u);
  EXPECT_FALSE(rest.runs[0].is_first);
  EXPECT_TRUE(rest.runs[1].is_first);
  EXPECT_TRUE(ledger.take_rest(ChunkId{0}, runs_).runs.empty());
}

// The first rank has two, and the others one each.
TEST_F(PartLedgerTest, WaitsForTheMicroBatchesThatARankHas) {
  const StepRounds rounds{4, 3};
  PartLedger ledger(shards_, rounds);
  ledger.begin_step();
  for (uint32_t rank = 0; rank < 3; ++rank) ledger.end_micro_batch(rank);
  EXPECT_FALSE(ledger.have_all_ended());
  ledger.end_micro_batch(0);
  EXPECT_TRUE(ledger.have_all_ended());
}

}  // namespace
}  // namespace terrace::part_ledger_test
