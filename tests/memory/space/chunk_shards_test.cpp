#include <terrace/memory/space/chunk_shards.h>

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace terrace::chunk_shards_test {
namespace {

// Chunks of 8 tiles, the last of 5, in two groups that meet within a tile.
const FlatSpace& hand_made() {
  static const FlatSpace space({{"a", {9 * kTileElements + 64}, DataType::bf16, true, 0},
                                {"b", {4 * kTileElements - 64}, DataType::bf16, true, 1}},
                               8 * kTileElements);
  return space;
}

TEST(ChunkShards, AreEqualRunsOfTilesAndTheLastOnesShorter) {
  const FlatSpace& space = hand_made();
  ASSERT_EQ(space.chunk(ChunkId{1}).tile_count(), 5u);
  const ChunkShards shards(space, 1, 3);
  EXPECT_EQ(shards.transfer_tiles(ChunkId{0}), 3u);
  EXPECT_EQ(shards.of(ChunkId{0}, 0), (ShardTiles{0, 3}));
  EXPECT_EQ(shards.own(ChunkId{0}), (ShardTiles{3, 3}));
  EXPECT_EQ(shards.of(ChunkId{0}, 2), (ShardTiles{6, 2}));
  EXPECT_EQ(shards.transfer_tiles(ChunkId{1}), 2u);
  EXPECT_EQ(shards.of(ChunkId{1}, 2), (ShardTiles{4, 1}));
}

TEST(ChunkShards, OfMoreRanksThanTilesAreEmpty) {
  const ChunkShards shards(hand_made(), 7, 11);
  EXPECT_EQ(shards.transfer_tiles(ChunkId{1}), 1u);
  EXPECT_EQ(shards.of(ChunkId{1}, 4), (ShardTiles{4, 1}));
  EXPECT_EQ(shards.own(ChunkId{1}).tile_count, 0u);
  EXPECT_TRUE(shards.segments_of(ChunkId{1}).empty());
  shards.check();
}

TEST(ChunkShards, OfOneRankAreTheChunks) {
  const FlatSpace& space = hand_made();
  const ChunkShards shards(space, 0, 1);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    EXPECT_EQ(shards.own(ChunkId{c}).elements(), space.chunk(ChunkId{c}).elements);
    EXPECT_EQ(shards.segments_of(ChunkId{c}).size(), space.segments_of(ChunkId{c}).size());
  }
}

TEST(ChunkShards, CutSegmentsWhereTheyEnd) {
  const ChunkShards shards(hand_made(), 0, 2);
  // Chunk 1 has "a" to the end of its first tile and 64 elements, then "b"; the shard is of three tiles.
  const std::span<const Segment> segments = shards.segments_of(ChunkId{1});
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].group, 0u);
  EXPECT_EQ(segments[0].elements, kTileElements + 64);
  EXPECT_EQ(segments[1].group, 1u);
  EXPECT_EQ(segments[1].first_element, kTileElements + 64);
  EXPECT_EQ(segments[1].elements, 2 * kTileElements - 64);
}

// Every element of a random space has the group in its owner's shard that it has in the space.
TEST(ChunkShards, HaveEveryElementOnceWithItsGroup) {
  std::mt19937 random(41);
  for (int round = 0; round < 30; ++round) {
    std::vector<TensorSpec> tensors;
    const uint32_t count = 1 + random() % 12;
    for (uint32_t t = 0; t < count; ++t)
      tensors.push_back(
          {std::to_string(t), {1 + random() % (6 * kTileElements)}, DataType::bf16, t % 5 != 4, t % 3});
    const FlatSpace space(std::move(tensors), (1 + random() % 6) * kTileElements);
    const uint32_t ranks = 1 + random() % 9;
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      std::vector<uint32_t> groups(space.chunk(ChunkId{c}).elements, UINT32_MAX), expected(groups);
      for (const Segment& segment : space.segments_of(ChunkId{c})) {
        for (uint64_t e = 0; e < segment.elements; ++e) expected[segment.first_element + e] = segment.group;
      }
      for (uint32_t r = 0; r < ranks; ++r) {
        const ChunkShards shards(space, r, ranks);
        const uint64_t first = shards.own(ChunkId{c}).first_element();
        for (const Segment& segment : shards.segments_of(ChunkId{c})) {
          for (uint64_t e = 0; e < segment.elements; ++e) {
            uint32_t& group = groups.at(first + segment.first_element + e);
            ASSERT_EQ(group, UINT32_MAX);
            group = segment.group;
          }
        }
      }
      ASSERT_EQ(groups, expected) << "round " << round;
    }
    for (uint32_t r = 0; r < ranks; ++r) ChunkShards(space, r, ranks).check();
  }
}

}  // namespace
}  // namespace terrace::chunk_shards_test
