// Tensors of one program among those of another.
#include <gtest/gtest.h>

#include <terrace/runtime/checkpoint/internal/tensor_list.h>

namespace terrace::tensor_map_test {
namespace {

using checkpoint::TensorMap;

TensorSpec tensor(std::string name, std::vector<uint64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape)};
}

// "t0[2..5) t1[0..1)"
std::string pieces(const TensorMap& map, uint32_t tensor, uint64_t first, uint64_t count) {
  std::string text;
  uint64_t next = 0;
  map.for_each_piece(TensorId{tensor}, first, count,
                     [&](TensorId from, uint64_t begin, uint64_t at, uint64_t n) {
                       EXPECT_EQ(at, next);
                       next += n;
                       text += "t" + std::to_string(index_of(from)) + "[" + std::to_string(begin) + ".." +
                               std::to_string(begin + n) + ") ";
                     });
  EXPECT_EQ(next, count);
  return text;
}

TEST(TensorMap, FindsRowsWhereverATableIsCut) {
  const std::vector<TensorSpec> from = {tensor("b", {5}), tensor("table[0]", {2, 3}),
                                        tensor("table[1]", {4, 3}), tensor("table[2]", {1, 3})};
  const std::vector<TensorSpec> to = {tensor("table[0]", {5, 3}), tensor("table[1]", {2, 3}),
                                      tensor("b", {5})};
  const TensorMap map(from, to);
  EXPECT_EQ(map.difference(), "");
  EXPECT_EQ(pieces(map, 0, 0, 15), "t1[0..6) t2[0..9) ");
  EXPECT_EQ(pieces(map, 0, 7, 2), "t2[1..3) ");
  EXPECT_EQ(pieces(map, 1, 0, 6), "t2[9..12) t3[0..3) ");
  EXPECT_EQ(pieces(map, 2, 1, 4), "t0[1..5) ");
  const std::vector<TensorSpec> whole = {tensor("b", {5}), tensor("table", {7, 3})};
  const TensorMap joined(from, whole);
  EXPECT_EQ(joined.difference(), "");
  EXPECT_EQ(pieces(joined, 1, 0, 21), "t1[0..6) t2[0..12) t3[0..3) ");
  EXPECT_EQ(TensorMap(whole, from).difference(), "");
  EXPECT_EQ(pieces(TensorMap(whole, from), 2, 2, 3), "t1[8..11) ");
}

TEST(TensorMap, PassesOverWhatKeepsAPlace) {
  const std::vector<TensorSpec> from = {tensor("a", {2}), tensor(".padding", {9}), tensor("b", {4})};
  const std::vector<TensorSpec> to = {tensor(".other", {3}), tensor("b", {4}), tensor("a", {2})};
  const TensorMap map(from, to);
  EXPECT_EQ(map.difference(), "");
  EXPECT_TRUE(map.is_padding(TensorId{0}));
  EXPECT_FALSE(map.is_padding(TensorId{1}));
  EXPECT_EQ(pieces(map, 1, 0, 4), "t2[0..4) ");
}

// Its values are found, and its moments are those of another optimizer.
TEST(TensorMap, SaysWhichMatrixAnotherOptimizerTrains) {
  std::vector<TensorSpec> from = {tensor("a", {2, 3}), tensor("b", {4, 4}), tensor("c", {4, 4})};
  from[1].by_matrix = true;
  std::vector<TensorSpec> to = {from[2], from[1], from[0]};
  EXPECT_EQ(TensorMap(from, to).updated_otherwise(), "");
  to[0].by_matrix = true;
  EXPECT_EQ(TensorMap(from, to).difference(), "");
  EXPECT_EQ(TensorMap(from, to).updated_otherwise(), "c");
  EXPECT_EQ(TensorMap(to, from).updated_otherwise(), "c");
  EXPECT_EQ(pieces(TensorMap(from, to), 1, 0, 16), "t1[0..16) ");
}

TEST(TensorMap, SaysWhatDiffers) {
  const std::vector<TensorSpec> from = {tensor("a", {2, 3}), tensor("b", {4})};
  const auto difference = [&](std::vector<TensorSpec> to) { return TensorMap(from, to).difference(); };
  EXPECT_EQ(difference({tensor("b", {4}), tensor("a", {2, 3})}), "");
  EXPECT_EQ(difference({tensor("a", {3, 2}), tensor("b", {4})}), "\"a\" is 2 x 3 there, and 3 x 2 here");
  EXPECT_EQ(difference({tensor("a", {2, 3})}), "\"b\" is not here");
  EXPECT_EQ(difference({tensor("a", {2, 3}), tensor("b", {4}), tensor("c", {1})}), "\"c\" is not there");
  std::vector<TensorSpec> to = from;
  to[0].type = DataType::fp16;
  EXPECT_EQ(difference(to), "\"a\" is bf16 there, and fp16 here");
  to = from;
  to[1].trainable = false;
  EXPECT_EQ(difference(to), "\"b\" is trained there, and frozen here");
}

// Names with brackets of a program's own are names.
TEST(TensorMap, TakesNoOtherBracketsForCuts) {
  const std::vector<TensorSpec> odd = {tensor("a[1]", {2}), tensor("a[0]", {2}), tensor("a[2]", {2}),
                                       tensor("[0]", {2}),  tensor("b", {2}),    tensor("b[0]", {2}),
                                       tensor("c[00]", {2})};
  std::vector<TensorSpec> other = odd;
  std::swap(other[0], other[5]);
  const TensorMap map(odd, other);
  EXPECT_EQ(map.difference(), "");
  EXPECT_EQ(pieces(map, 0, 0, 2), "t5[0..2) ");
  EXPECT_EQ(pieces(map, 5, 0, 2), "t0[0..2) ");
  EXPECT_EQ(pieces(map, 2, 0, 2), "t2[0..2) ");
}

}  // namespace
}  // namespace terrace::tensor_map_test
