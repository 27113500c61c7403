#include <terrace/offload/landing/gradient_sums.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace terrace::gradient_sums_test {
namespace {

class GradientSumsTest : public ::testing::Test {
 protected:
  // A chunk of two blocks that is trained, one that is frozen, and a last one that is trained.
  const FlatSpace space{{{"a", {2 * kTileElements}, DataType::bf16},
                         {"frozen", {kTileElements}, DataType::bf16, false},
                         {"b", {kTileElements}, DataType::fp32}},
                        2 * kTileElements};
  const ChunkShards shards{space, 0, 1};
  std::array<double, 3> memory{1, 2, 4};
  GradientSums sums{shards, std::as_writable_bytes(std::span(memory)), false};
};

TEST_F(GradientSumsTest, HaveRoomForTheBlocksOfTrainableChunksOnly) {
  EXPECT_EQ(sums.of(ChunkId{0}).size(), 2u);
  EXPECT_EQ(sums.of(ChunkId{1}).size(), 0u);
  EXPECT_EQ(sums.of(ChunkId{2}).data(), &memory[2]);
}

TEST_F(GradientSumsTest, AreAddedUpToTheNormOfAllChunks) {
  EXPECT_EQ(sums.norm().sum_of_squares(), 7.0);
  sums.set_zero(ChunkId{0});
  EXPECT_EQ(sums.norm().sum_of_squares(), 4.0);
}

TEST_F(GradientSumsTest, SayOfEachChunkWhetherItIsFinite) {
  sums.of(ChunkId{0})[1] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(sums.is_finite(ChunkId{0}));
  EXPECT_TRUE(sums.is_finite(ChunkId{2}));
  EXPECT_FALSE(sums.norm().finite());
}

TEST_F(GradientSumsTest, KnowWhichGradientsAreComplete) {
  EXPECT_FALSE(sums.is_complete(ChunkId{0}));
  sums.note_complete(ChunkId{0});
  EXPECT_TRUE(sums.is_complete(ChunkId{0}));
  EXPECT_FALSE(sums.is_complete(ChunkId{2}));
  sums.forget(ChunkId{0});
  EXPECT_FALSE(sums.is_complete(ChunkId{0}));
}

TEST_F(GradientSumsTest, AreAllFiniteWhereNothingIsComputed) {
  memory[0] = std::numeric_limits<double>::infinity();
  const GradientSums dry(shards, std::as_writable_bytes(std::span(memory)), true);
  EXPECT_TRUE(dry.is_finite(ChunkId{0}));
  EXPECT_EQ(dry.norm().sum_of_squares(), 0.0);
}

}  // namespace
}  // namespace terrace::gradient_sums_test
