// Products in bf16: the processor's instruction, and its arithmetic by every instruction set, against the
// chain that kernels.h describes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <terrace/runtime/model/compute/gemm.h>
#include <terrace/runtime/model/compute/internal/kernel_table.h>

#include "compute_test_support.h"
#include "support/work_memory.h"

namespace terrace::testing::gemm_bf16_test {
namespace {

constexpr uint64_t kWorkBytes = 16 * kMiB;

float normal_or_zero(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// A result that would be less than the least normal number if its exponent had no bound is a zero.
float one_step(float a, float b, float c) {
  a = normal_or_zero(a), b = normal_or_zero(b), c = normal_or_zero(c);
  const double exact = double{a} * double{b} + double{c};
  if (std::fabs(exact) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, static_cast<float>(exact));
  return std::fma(a, b, c);
}

float rounded(float value) {
  return to_float(to_bf16(value));
}

// The specification: pairs of depths in the order 1, 0, 3, 2, ...; a depth that is missing counts as zero.
std::vector<float> reference(const ProductShape& shape, const std::vector<float>& a,
                             const std::vector<float>& b, const std::vector<float>& start) {
  std::vector<float> c(start);
  for (uint64_t i = 0; i < shape.rows; ++i) {
    for (uint64_t j = 0; j < shape.columns; ++j) {
      float& value = c[i * shape.columns + j];
      for (uint64_t k = 0; k < (shape.depth + 1) / 2 * 2; ++k) {
        const uint64_t p = k ^ 1;
        const bool there = p < shape.depth;
        value = one_step(there ? rounded(a[i * shape.depth + p]) : 0.0f,
                         there ? rounded(b[p * shape.columns + j]) : 0.0f, value);
      }
    }
  }
  return c;
}

std::vector<float> turned(const std::vector<float>& x, uint64_t rows, uint64_t columns) {
  std::vector<float> y(x.size());
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
  }
  return y;
}

// The same number, or both none.
void expect_same(const std::vector<float>& values, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " element " << i << ": " << values[i] << " for " << expected[i];
  }
}

const std::vector<ProductShape> kShapes = {
    {1, 1, 1},    {1, 1, 0},     {3, 5, 7},     {6, 8, 4},     {12, 32, 16},   {13, 33, 17},   {11, 31, 5},
    {5, 64, 512}, {24, 65, 513}, {70, 130, 31}, {265, 70, 33}, {40, 300, 12},  {3, 257, 1027}, {100, 64, 96},
    {96, 96, 64}, {64, 7, 300},  {1, 600, 20},  {600, 1, 20},  {133, 129, 64}, {2, 40, 1026},
};

class ProductInBf16 : public ForEachInstructionSet {};

TEST_P(ProductInBf16, IsTheInstructionsChainForEveryShapeAndOperand) {
  Workers workers(2);
  const Products products(workers, GetParam(), DataType::bf16);
  WorkMemory work(kWorkBytes);
  for (const ProductShape& shape : kShapes) {
    const StackArena::Frame frame(work.arena());
    const ThreadScratch scratch(work.arena(), workers, Products::workspace_floats());
    const std::vector<float> a = random_values(shape.rows * shape.depth, 1);
    const std::vector<float> b = random_values(shape.depth * shape.columns, 2);
    const std::vector<float> start = random_values(shape.rows * shape.columns, 3);
    const std::vector<float> a_turned = turned(a, shape.rows, shape.depth);
    for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
      std::vector<float> values = b;
      if (type == DataType::bf16) values = as_floats(rounded_to<Bf16>(b));
      if (type == DataType::fp16) values = as_floats(rounded_to<Fp16>(b));
      const std::vector<float> expected = reference(shape, a, values, start);
      for (const bool transposed : {false, true}) {
        const std::vector<float> stored = transposed ? turned(b, shape.depth, shape.columns) : b;
        const std::vector<Bf16> brains = rounded_to<Bf16>(stored);
        const std::vector<Fp16> halves = rounded_to<Fp16>(stored);
        const void* data[] = {stored.data(), brains.data(), halves.data()};
        std::vector<float> c = start;
        products.multiply(shape,
                          {.data = transposed ? a_turned.data() : a.data(),
                           .stride = transposed ? shape.rows : shape.depth,
                           .transposed = transposed},
                          {.data = data[static_cast<size_t>(type)],
                           .stride = transposed ? shape.depth : shape.columns,
                           .type = type,
                           .transposed = transposed},
                          {.data = c.data(), .stride = shape.columns, .accumulate = true}, scratch);
        expect_same(c, expected, name_of(type).data());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ProductInBf16,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

// Every kernel that this machine can run.
std::vector<std::pair<const char*, compute::ProductKernel>> all_kernels() {
  std::vector<std::pair<const char*, compute::ProductKernel>> kernels;
  for (const InstructionSet set : supported_instruction_sets())
    kernels.push_back({name_of(set).data(), compute::kernels_of(set).product_bf16});
  kernels.push_back({"the fastest", compute::product_kernel(best_instruction_set(), DataType::bf16)});
  return kernels;
}

// c = start + a * b for single numbers, a pair of depths in each element.
std::vector<float> pairs_by(compute::ProductKernel kernel, const std::vector<float>& a,
                            const std::vector<float>& b, const std::vector<float>& start) {
  std::vector<float> workspace(compute::kProductWorkspaceFloats + 16), c(start.size());
  float* const aligned =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64 / 4;
  for (size_t i = 0; i < start.size(); ++i) {
    kernel({.rows = 1,
            .columns = 1,
            .depth = 2,
            .a = {&a[2 * i], 2, compute::Format::fp32, false},
            .b = {&b[2 * i], 1, compute::Format::fp32, false},
            .c = &c[i],
            .c_stride = 1,
            .start = &start[i],
            .start_stride = 1,
            .workspace = aligned});
  }
  return c;
}

TEST(ProductInBf16OfEveryKernel, TakesTinyHugeAndBrokenNumbersAsTheInstructionDoes) {
  const float most = std::numeric_limits<float>::max(), least = 0x1p-126f, tiny = 0x1p-130f;
  const float infinite = std::numeric_limits<float>::infinity(), none = std::nanf("");
  std::vector<float> a, b, start;
  const auto add = [&](float a0, float b0, float a1, float b1, float c) {
    a.insert(a.end(), {a0, a1}), b.insert(b.end(), {b0, b1}), start.push_back(c);
  };
  // Sums just above, at and below the least normal number.
  for (const float part : {1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 0.5f}) {
    add(0, 0, 0x1p-75f, -0x1p-76f * part, least);
    add(0x1p-75f, 0x1p-76f * part, 0, 0, -least);
    add(0x1p-70f, 0x1p-60f * part, 0x1p-70f, -0x1p-61f * part, 0x1p-140f);
  }
  for (const float special :
       {0.0f, -0.0f, tiny, -tiny, least, 0x1p-64f, 1.0f, 3.0f, most, -most, infinite, none}) {
    for (const float other : {0.0f, tiny, 0x1p-63f, -0x1p-63f, 1.0f, 0x1.fep127f, -infinite, none}) {
      for (const float c : {0.0f, -0.0f, tiny, -least, 1.0f, -most, infinite}) {
        add(special, other, 1.0f, 0.5f, c);
        add(0.0f, 0.0f, special, other, c);
        add(special, other, -special, other, c);
      }
    }
  }
  for (int i = 0; i < 20000; ++i) {
    const auto number = [&](int stream) {
      return std::bit_cast<float>(
          static_cast<uint32_t>(random_bits({.seed = 5, .stream = uint64_t(stream)}, i)));
    };
    add(number(0), number(1), number(2), number(3), number(4));
  }
  std::vector<float> expected;
  for (size_t i = 0; i < start.size(); ++i) {
    expected.push_back(one_step(rounded(a[2 * i]), rounded(b[2 * i]),
                                one_step(rounded(a[2 * i + 1]), rounded(b[2 * i + 1]), start[i])));
  }
  for (const auto& [name, kernel] : all_kernels()) expect_same(pairs_by(kernel, a, b, start), expected, name);
}

}  // namespace
}  // namespace terrace::testing::gemm_bf16_test
