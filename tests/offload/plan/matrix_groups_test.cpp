// The groups in which matrices are updated: every matrix is in one, no chunk has matrices of three, and the
// work is divided evenly.
#include <terrace/offload/plan/matrix_groups.h>

#include <gtest/gtest.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/space/flat_space.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace terrace::matrix_groups_test {
namespace {

std::vector<TensorSpec> drawn_tensors(std::mt19937& random) {
  std::vector<TensorSpec> tensors;
  const uint32_t count = 1 + random() % 30;
  for (uint32_t t = 0; t < count; ++t) {
    const bool by_matrix = random() % 3 != 0;
    tensors.push_back({.name = "t" + std::to_string(t),
                       .shape = {1 + random() % 150, 1 + random() % 150},
                       .type = random() % 3 == 0 ? DataType::fp32 : DataType::bf16,
                       .trainable = by_matrix || random() % 2 == 0,
                       .by_matrix = by_matrix});
  }
  return tensors;
}

void expect_sound(const FlatSpace& space, const MatrixGroups& groups) {
  std::set<uint32_t> seen;
  std::vector<uint32_t> last(space.chunk_count());  // by chunk: the last group that has a matrix there
  for (uint32_t g = 0; g < groups.groups().size(); ++g) {
    const MatrixGroup& group = groups.groups()[g];
    EXPECT_FALSE(group.matrices.empty());
    EXPECT_TRUE(std::ranges::is_sorted(group.matrices, {}, &MatrixOfGroup::owner));
    for (const MatrixOfGroup& matrix : group.matrices) {
      EXPECT_TRUE(seen.insert(index_of(matrix.tensor)).second) << "each is in one group";
      const TensorPlace& place = space.place(matrix.tensor);
      EXPECT_GE(place.first_chunk, group.first_chunk);
      EXPECT_LE(place.first_chunk + place.chunk_count, group.end_chunk);
      for (uint32_t c = 0; c < place.chunk_count; ++c) {
        uint32_t& before = last[place.first_chunk + c];
        EXPECT_TRUE(before == 0 || before == g + 1 || before == g) << "no chunk has matrices of three groups";
        before = g + 1;
      }
    }
  }
  for (uint32_t t = 0; t < space.tensor_count(); ++t)
    EXPECT_EQ(seen.contains(t), space.tensor(TensorId{t}).by_matrix);
}

TEST(MatrixGroups, HaveEveryMatrixOnceAndNoChunkOfThree) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const FlatSpace space(drawn_tensors(random), (1 + random() % 3) * kTileElements);
    expect_sound(space, MatrixGroups(space, 1 + random() % 4));
  }
}

TEST(MatrixGroups, CountTheOwnPartsOfEveryRank) {
  std::mt19937 random(13);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const FlatSpace space(drawn_tensors(random), (1 + random() % 3) * kTileElements);
    const uint32_t ranks = 1 + random() % 5;
    const MatrixGroups groups(space, ranks);
    uint64_t most_own = 0, most_owned = 0;
    for (const MatrixGroup& group : groups.groups()) {
      std::vector<uint64_t> owned(ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const ChunkShards shards(space, rank, ranks);
        uint64_t own = 0;
        for (const MatrixOfGroup& matrix : group.matrices) {
          const TensorPlace& place = space.place(matrix.tensor);
          for (uint32_t c = 0; c < place.chunk_count; ++c) {
            const ChunkId chunk{place.first_chunk + c};
            const FlatSpace::Part part = space.part_of(matrix.tensor, chunk);
            const uint64_t begin = std::max(part.first_in_chunk, shards.own(chunk).first_element());
            const uint64_t end = std::min(part.first_in_chunk + part.elements,
                                          shards.own(chunk).first_element() + shards.elements(chunk));
            const MatrixPart found = own_part_of(space, matrix.tensor, c, rank, ranks);
            EXPECT_EQ(found.elements, begin < end ? end - begin : 0);
            if (begin < end) {
              EXPECT_EQ(found.first_in_tensor, part.first_in_tensor + begin - part.first_in_chunk);
            }
            own += found.elements;
          }
          if (matrix.owner == rank) owned[rank] += matrix.elements();
        }
        most_own = std::max(most_own, own);
      }
      most_owned = std::max(most_owned, *std::ranges::max_element(owned));
    }
    EXPECT_EQ(groups.most_own_elements(), most_own);
    EXPECT_EQ(groups.most_owned_elements(), ranks == 1 ? 0 : most_owned);
  }
}

// Twelve layers of four square and two wide matrices: what a step makes of each is dear, and no rank has much
// more of it than another.
TEST(MatrixGroups, DivideTheWorkEvenly) {
  std::vector<TensorSpec> tensors;
  for (uint32_t layer = 0; layer < 12; ++layer) {
    for (uint32_t m = 0; m < 6; ++m)
      tensors.push_back({.name = std::to_string(layer) + "." + std::to_string(m),
                         .shape = {m < 4 ? 128u : 512u, 128},
                         .by_matrix = true});
  }
  const SpaceLayout space(tensors, 4 * kTileElements);
  for (const uint32_t ranks : {2u, 3u, 4u}) {
    std::vector<double> work(ranks);
    const MatrixGroups groups(space, ranks);
    for (const MatrixGroup& group : groups.groups()) {
      for (const MatrixOfGroup& matrix : group.matrices)
        work[matrix.owner] += static_cast<double>(2 * std::max(matrix.rows, matrix.columns) + 128);
    }
    EXPECT_LE(*std::ranges::max_element(work), 1.35 * *std::ranges::min_element(work)) << ranks;
  }
}

TEST(MatrixGroups, AreNoneWithoutMatrices) {
  const SpaceLayout space({{.name = "a", .shape = {64, 64}}}, kTileElements);
  const MatrixGroups groups(space, 2);
  EXPECT_TRUE(groups.empty());
  EXPECT_EQ(groups.host_bytes(), 0u);
}

}  // namespace
}  // namespace terrace::matrix_groups_test
