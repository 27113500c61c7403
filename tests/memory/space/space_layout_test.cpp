// Where tensors lie without a table of chunks: the same as with one.
#include <terrace/memory/space/space_layout.h>

#include <gtest/gtest.h>
#include <terrace/memory/space/flat_space.h>

#include <random>
#include <string>
#include <vector>

namespace terrace::space_layout_test {
namespace {

TEST(SpaceLayout, SaysOfEveryChunkWhatTheTableDoes) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<TensorSpec> tensors;
    for (uint32_t t = 0; t <= random() % 9; ++t)
      tensors.push_back({.name = "t" + std::to_string(t),
                         .shape = {1 + random() % (3 * kTileElements)},
                         .type = random() % 2 == 0 ? DataType::fp32 : DataType::bf16,
                         .trainable = random() % 3 != 0});
    const uint64_t elements = (1 + random() % 4) * kTileElements;
    const SpaceLayout layout(tensors, elements);
    const FlatSpace space(tensors, elements);
    space.check();
    ASSERT_EQ(layout.chunk_count(), space.chunk_count());
    uint32_t chunk = 0;
    for (const Section& section : layout.sections()) {
      for (uint32_t i = 0; i < section.chunk_count; ++i, ++chunk)
        EXPECT_EQ(layout.elements_of_chunk(section, i), space.chunk(ChunkId{chunk}).elements);
    }
    EXPECT_EQ(chunk, space.chunk_count());
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      EXPECT_EQ(layout.place(TensorId{t}).first_chunk, space.place(TensorId{t}).first_chunk);
      EXPECT_EQ(layout.place(TensorId{t}).chunk_count, space.place(TensorId{t}).chunk_count);
    }
  }
}

TEST(SpaceLayout, SaysHowManyElementsTheLargestTrainableChunkHas) {
  const auto largest = [](std::vector<TensorSpec> tensors) {
    return SpaceLayout(std::move(tensors), kTileElements).largest_trainable_chunk();
  };
  const auto tensor = [](DataType type, bool trainable) {
    return TensorSpec{.name = "t", .shape = {kTileElements}, .type = type, .trainable = trainable};
  };
  const TensorSpec narrow = tensor(DataType::bf16, true), wide = tensor(DataType::fp32, true);
  const TensorSpec narrow_frozen = tensor(DataType::bf16, false), wide_frozen = tensor(DataType::fp32, false);
  EXPECT_EQ(largest({narrow}), kTileElements);
  EXPECT_EQ(largest({narrow, wide}), 2 * kTileElements);
  EXPECT_EQ(largest({narrow, wide_frozen}), 2 * kTileElements);
  EXPECT_EQ(largest({narrow_frozen, wide}), kTileElements);
  EXPECT_EQ(largest({narrow_frozen, wide_frozen}), kTileElements) << "one without records is planned for too";
}

}  // namespace
}  // namespace terrace::space_layout_test
