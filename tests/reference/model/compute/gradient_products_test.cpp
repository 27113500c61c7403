#include <terrace/reference/model/compute/gradient_products.h>

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include <terrace/reference/model/compute/thread_scratch.h>

#include "compute_test_support.h"
#include "support/rounded_values.h"
#include "support/work_memory.h"

namespace terrace::testing::gradient_products_test {
namespace {

constexpr uint64_t kWorkBytes = 16 * kMiB;

// Less and more than a tile.
const std::vector<ProductShape> kShapes = {
    {1, 1, 1},     {1, 1, 0},     {3, 5, 7},       {13, 33, 17}, {5, 64, 256},
    {40, 300, 12}, {265, 70, 33}, {100, 257, 513}, {1, 600, 20}, {600, 1, 20},
};

class GradientProduct : public ForEachInstructionSet {};

TEST_P(GradientProduct, LandsInAGradientOnceInItsPrecision) {
  Workers workers(2);
  const Products products(workers, GetParam());
  const GradientProducts gradient_products(products, GetParam());
  WorkMemory work(kWorkBytes);
  for (const ProductShape& shape : kShapes) {
    const StackArena::Frame frame(work.arena());
    const ThreadScratch scratch(work.arena(), workers, Products::workspace_floats());
    const std::vector<float> a = random_values(shape.rows * shape.depth, 1);
    const std::vector<float> b = random_values(shape.depth * shape.columns, 2);
    const std::vector<float> before = random_values(shape.rows * shape.columns, 3);
    const Operand left{.data = a.data(), .stride = shape.depth},
        right{.data = b.data(), .stride = shape.columns};
    std::vector<float> values(before.size());
    products.multiply(shape, left, right, {.data = values.data(), .stride = shape.columns}, scratch);
    for (const bool accumulate : {false, true}) {
      std::vector<float> full = before;
      std::vector<Bf16> half = rounded_to<Bf16>(before);
      std::vector<Fp16> half16 = rounded_to<Fp16>(before);
      gradient_products.multiply(shape, left, right,
                                 {{reinterpret_cast<std::byte*>(full.data()), accumulate}, DataType::fp32},
                                 scratch);
      gradient_products.multiply(shape, left, right,
                                 {{reinterpret_cast<std::byte*>(half.data()), accumulate}, DataType::bf16},
                                 scratch);
      gradient_products.multiply(shape, left, right,
                                 {{reinterpret_cast<std::byte*>(half16.data()), accumulate}, DataType::fp16},
                                 scratch);
      for (size_t i = 0; i < values.size(); ++i) {
        const float held = to_float(to_bf16(before[i]));
        ASSERT_EQ(full[i], accumulate ? before[i] + values[i] : values[i]);
        ASSERT_EQ(half[i].bits, to_bf16(accumulate ? held + values[i] : values[i]).bits);
        const float held16 = to_float(to_fp16(before[i]));
        ASSERT_EQ(half16[i].bits, to_fp16(accumulate ? held16 + values[i] : values[i]).bits);
      }
    }
  }
}

// Lands `special` through a product of depth one: 1 * x + 0 keeps every value but the sign of zero.
template <typename T>
void expect_landed_as_converted(const GradientProducts& products, const std::vector<float>& special,
                                const ThreadScratch& scratch) {
  const float one = 1.0f;
  std::vector<T> landed(special.size());
  products.multiply({1, special.size(), 1}, {.data = &one, .stride = 1},
                    {.data = special.data(), .stride = special.size()},
                    {{reinterpret_cast<std::byte*>(landed.data()), false}, type_of(T{})}, scratch);
  for (size_t i = 0; i < special.size(); ++i) {
    T expected;
    round_to(1.0f * special[i] + 0.0f, expected);
    EXPECT_EQ(landed[i].bits, expected.bits)
        << name_of(type_of(T{})) << " element " << i << ": " << special[i];
  }
}

TEST_P(GradientProduct, RoundsGradientsLikeTheOneConversionOfTheProject) {
  Workers workers(1);
  const GradientProducts products(Products(workers, GetParam()), GetParam());
  WorkMemory work(kWorkBytes);
  const ThreadScratch scratch(work.arena(), workers, Products::workspace_floats());
  std::vector<float> special;
  for (const uint32_t bits :
       {0x00000000u, 0x80000000u, 0x00000001u, 0x3f808000u, 0x3f807fffu, 0x3f818000u, 0xbf808000u,
        0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc12345u, 0xffc00001u, 0x7f7f8000u,
        // Where fp16 decides: ties, the largest numbers, denormals and what is too small for one.
        0x3f801000u, 0x3f803000u, 0x477fefffu, 0x477ff000u, 0xc77fe000u, 0x387fc000u, 0x387fe000u,
        0x33000000u, 0x33000001u, 0xb3c00000u, 0x38800fffu}) {
    special.push_back(std::bit_cast<float>(bits));
  }
  const size_t count = special.size();
  while (special.size() < 3 * count) special.push_back(special[special.size() % count]);
  special.push_back(1.0f);  // one more than vectors take
  expect_landed_as_converted<Bf16>(products, special, scratch);
  expect_landed_as_converted<Fp16>(products, special, scratch);
}

INSTANTIATE_TEST_SUITE_P(Sets, GradientProduct,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::gradient_products_test
