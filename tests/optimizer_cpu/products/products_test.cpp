#include <terrace/optimizer_cpu/products/products.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "../instruction_set_cases.h"
#include "product_cases.h"
#include "support/allocation_counter.h"
#include "support/rounded_values.h"

namespace terrace::testing::products_test {
namespace {

// The specification: one chain over the depth.
std::vector<float> reference(const ProductShape& shape, const std::vector<float>& a, bool a_transposed,
                             const std::vector<float>& b, bool b_transposed, const std::vector<float>& start,
                             bool fused) {
  std::vector<float> c(start);
  for (uint64_t i = 0; i < shape.rows; ++i) {
    for (uint64_t j = 0; j < shape.columns; ++j) {
      float& value = c[i * shape.columns + j];
      for (uint64_t p = 0; p < shape.depth; ++p) {
        const float x = a_transposed ? a[p * shape.rows + i] : a[i * shape.depth + p];
        const float y = b_transposed ? b[j * shape.depth + p] : b[p * shape.columns + j];
        value = fused ? std::fma(x, y, value) : value + x * y;
      }
    }
  }
  return c;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

// Around the widths of slivers, tiles and blocks.
const std::vector<ProductShape> kShapes = {
    {1, 1, 1},    {1, 1, 0},     {3, 5, 7},     {6, 8, 4},     {12, 32, 16},   {13, 33, 17},  {11, 31, 5},
    {5, 64, 256}, {24, 65, 257}, {70, 130, 31}, {265, 70, 33}, {40, 300, 12},  {3, 257, 513}, {100, 64, 96},
    {96, 96, 64}, {64, 7, 300},  {1, 600, 20},  {600, 1, 20},  {133, 129, 64},
};

class Product : public EveryInstructionSet {
 protected:
  bool fused() const { return GetParam() != InstructionSet::scalar; }
};
TERRACE_ON_EVERY_INSTRUCTION_SET(Product);

TEST_P(Product, IsOneChainOverTheDepthForEveryShapeAndOperand) {
  Workers workers(2);
  const Products products(workers, GetParam());
  for (const ProductShape& shape : kShapes) {
    ScratchOf scratch(workers);
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
          const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
          std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
          const std::vector<Bf16> brains = rounded_to<Bf16>(b);
          const std::vector<Fp16> halves = rounded_to<Fp16>(b);
          const void* data[] = {b.data(), brains.data(), halves.data()};
          if (type == DataType::bf16) b = as_floats(brains);
          if (type == DataType::fp16) b = as_floats(halves);
          const Operand left{.data = a.data(),
                             .stride = a_transposed ? shape.rows : shape.depth,
                             .transposed = a_transposed};
          const Operand right{.data = data[static_cast<size_t>(type)],
                              .stride = b_transposed ? shape.depth : shape.columns,
                              .type = type,
                              .transposed = b_transposed};
          std::vector<float> c(shape.rows * shape.columns, std::nanf(""));
          products.multiply(shape, left, right, {.data = c.data(), .stride = shape.columns}, scratch);
          const std::vector<float> zeros(c.size(), 0.0f);
          ASSERT_TRUE(same_bits(c, reference(shape, a, a_transposed, b, b_transposed, zeros, fused())))
              << shape.rows << " x " << shape.columns << " x " << shape.depth << (a_transposed ? " At" : " A")
              << (b_transposed ? " Bt " : " B ") << name_of(type);
        }
      }
    }
  }
}

TEST_P(Product, StartsFromABiasOrFromWhatIsThere) {
  Workers workers(2);
  const Products products(workers, GetParam());
  for (const ProductShape& shape : kShapes) {
    ScratchOf scratch(workers);
    const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
    const std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
    const std::vector<float> bias = normal_values(shape.columns, 3);
    const std::vector<float> before = normal_values(shape.rows * shape.columns, 4);
    const Operand left{.data = a.data(), .stride = shape.depth},
        right{.data = b.data(), .stride = shape.columns};
    std::vector<float> biases;
    for (uint64_t row = 0; row < shape.rows; ++row) biases.insert(biases.end(), bias.begin(), bias.end());

    std::vector<float> c(before.size(), std::nanf(""));
    products.multiply(shape, left, right, {.data = c.data(), .stride = shape.columns, .bias = bias.data()},
                      scratch);
    ASSERT_TRUE(same_bits(c, reference(shape, a, false, b, false, biases, fused())));

    c = before;
    products.multiply(shape, left, right, {.data = c.data(), .stride = shape.columns, .accumulate = true},
                      scratch);
    ASSERT_TRUE(same_bits(c, reference(shape, a, false, b, false, before, fused())));
  }
}

TEST_P(Product, OfPartsOfLargerMatricesTouchesNothingElse) {
  Workers workers(1);
  const Products products(workers, GetParam());
  AlignedFloats workspace(Products::workspace_floats());
  const ProductShape shape{13, 37, 21};
  const uint64_t stride = 50;
  const std::vector<float> a = normal_values(shape.rows * stride, 1),
                           b = normal_values(shape.depth * stride, 2);
  std::vector<float> c(shape.rows * stride, 5.0f);
  workers.parallel_for(1, [&](size_t) {
    products.multiply_here(shape, {.data = a.data() + 3, .stride = stride},
                           {.data = b.data() + 2, .stride = stride}, {.data = c.data() + 4, .stride = stride},
                           workspace.begin());
  });
  for (uint64_t row = 0; row < shape.rows; ++row) {
    for (uint64_t column = 0; column < stride; ++column) {
      float expected = 5.0f;
      if (column >= 4 && column < 4 + shape.columns) {
        expected = 0.0f;
        for (uint64_t p = 0; p < shape.depth; ++p) {
          const float x = a[row * stride + p + 3], y = b[p * stride + column - 4 + 2];
          expected = fused() ? std::fma(x, y, expected) : expected + x * y;
        }
      }
      ASSERT_EQ(c[row * stride + column], expected) << row << ", " << column;
    }
  }
}

TEST_P(Product, HandsOverEveryElementOnce) {
  Workers workers(2);
  const Products products(workers, GetParam());
  ScratchOf scratch(workers);
  for (const ProductShape& shape : kShapes) {
    const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
    const std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
    const Operand left{.data = a.data(), .stride = shape.depth},
        right{.data = b.data(), .stride = shape.columns};
    std::vector<float> c(shape.rows * shape.columns), handed_over(c.size());
    std::vector<int> times(c.size());
    products.multiply(shape, left, right, {.data = c.data(), .stride = shape.columns}, scratch);
    products.multiply_tiles(shape, left, right, scratch, [&](const ProductTile& tile, const float* values) {
      for (uint64_t i = 0; i < tile.rows * tile.columns; ++i) {
        const uint64_t row = tile.row + i / tile.columns, column = tile.column + i % tile.columns;
        handed_over[row * shape.columns + column] = values[i];
        ++times[row * shape.columns + column];
      }
    });
    ASSERT_TRUE(same_bits(handed_over, c));
    ASSERT_EQ(times, std::vector<int>(c.size(), 1));
  }
}

TEST_P(Product, HasTheSameBitsOnAnyNumberOfThreads) {
  const ProductShape shape{300, 700, 280};
  const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
  const std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
  std::vector<float> first;
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{3}}) {
    Workers workers(threads);
    const Products products(workers, GetParam());
    ScratchOf scratch(workers);
    std::vector<float> c(shape.rows * shape.columns);
    products.multiply(shape, {.data = a.data(), .stride = shape.depth},
                      {.data = b.data(), .stride = shape.columns},
                      {.data = c.data(), .stride = shape.columns}, scratch);
    if (first.empty()) first = c;
    EXPECT_TRUE(same_bits(c, first)) << threads << " threads";
  }
}

TEST_P(Product, AllocatesNothing) {
  Workers workers(1);
  const Products products(workers, GetParam());
  AlignedFloats workspace(Products::workspace_floats());
  const ProductShape shape{100, 200, 300};
  const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
  const std::vector<Bf16> b = rounded_to<Bf16>(normal_values(shape.depth * shape.columns, 2));
  std::vector<float> c(shape.rows * shape.columns);
  uint64_t allocated = ~uint64_t{0};
  workers.parallel_for(1, [&](size_t) {
    const uint64_t before = allocations_of_this_thread();
    products.multiply_here(shape, {.data = a.data(), .stride = shape.depth},
                           {.data = b.data(), .stride = shape.columns, .type = DataType::bf16},
                           {.data = c.data(), .stride = shape.columns}, workspace.begin());
    allocated = allocations_of_this_thread() - before;
  });
  EXPECT_EQ(allocated, 0u);
}

TEST(AllocationCounter, SeesAnAllocation) {
  const uint64_t before = allocations_of_this_thread();
  const std::vector<int> some(100);
  EXPECT_EQ(allocations_of_this_thread(), before + 1);
  EXPECT_EQ(some.size(), 100u);
}

TEST(ProductOfEverySet, IsTheSameWithAvx2AndAvx512) {
  if (!is_supported(InstructionSet::avx512)) GTEST_SKIP() << "this machine has no AVX-512";
  const ProductShape shape{37, 91, 300};
  const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
  const std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
  std::vector<std::vector<float>> results;
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    Workers workers(1);
    ScratchOf scratch(workers);
    results.emplace_back(shape.rows * shape.columns);
    Products(workers, set)
        .multiply(shape, {.data = a.data(), .stride = shape.depth},
                  {.data = b.data(), .stride = shape.columns},
                  {.data = results.back().data(), .stride = shape.columns}, scratch);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

}  // namespace
}  // namespace terrace::testing::products_test
