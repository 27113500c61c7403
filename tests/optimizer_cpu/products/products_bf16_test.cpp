// Products in bf16: the processor's instruction, and its arithmetic by every instruction set, against the
// chain that product_kernels.h describes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <terrace/optimizer_cpu/products/internal/product_table.h>
#include <terrace/optimizer_cpu/products/products.h>

#include "../instruction_set_cases.h"
#include "emulated_tiles.h"
#include "product_cases.h"
#include "support/rounded_values.h"

namespace terrace::testing::products_bf16_test {
namespace {

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

// The element (i, j) of the specification from `value` on; depths that are missing count as zeros.
struct Chain {
  const ProductShape& shape;
  const std::vector<float>&a, &b;
  uint64_t i, j;

  float step(uint64_t p, float value) const {
    const bool there = p < shape.depth;
    return one_step(there ? rounded(a[i * shape.depth + p]) : 0.0f,
                    there ? rounded(b[p * shape.columns + j]) : 0.0f, value);
  }
  // AVX512_BF16: pairs of depths in the order 1, 0, 3, 2, ...
  float pairs(float value) const {
    for (uint64_t p = 0; p < shape.depth; p += 2) value = step(p, step(p + 1, value));
    return value;
  }
  // AMX: the sums of the even and of the odd depths of each 32, and their sum.
  float tiles(float value) const {
    for (uint64_t first = 0; first < shape.depth; first += 32) {
      float even = 0.0f, odd = 0.0f;
      for (uint64_t p = first; p < first + 32; p += 2) even = step(p, even), odd = step(p + 1, odd);
      value = normal_or_zero(normal_or_zero(value) + normal_or_zero(even + odd));
    }
    return value;
  }
};

std::vector<float> reference(ProductType type, const ProductShape& shape, const std::vector<float>& a,
                             const std::vector<float>& b, const std::vector<float>& start) {
  std::vector<float> c(start);
  for (uint64_t i = 0; i < shape.rows; ++i) {
    for (uint64_t j = 0; j < shape.columns; ++j) {
      const Chain chain{shape, a, b, i, j};
      float& value = c[i * shape.columns + j];
      value = type == ProductType::bf16 ? chain.pairs(value) : chain.tiles(value);
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

// What a product is made of, in one of its stored forms.
struct Stored {
  DataType type;
  bool transposed;
};

// c = c + a * b by the kernel, b stored so and a turned as b is.
std::vector<float> multiplied(const std::function<void(const Operand&, const Operand&, float*)>& multiply,
                              const ProductShape& shape, const Stored& stored, const std::vector<float>& a,
                              const std::vector<float>& b, const std::vector<float>& start) {
  const std::vector<float> left = stored.transposed ? turned(a, shape.rows, shape.depth) : a;
  const std::vector<float> right = stored.transposed ? turned(b, shape.depth, shape.columns) : b;
  const std::vector<Bf16> brains = rounded_to<Bf16>(right);
  const std::vector<Fp16> halves = rounded_to<Fp16>(right);
  const void* data[] = {right.data(), brains.data(), halves.data()};
  std::vector<float> c = start;
  multiply({.data = left.data(),
            .stride = stored.transposed ? shape.rows : shape.depth,
            .transposed = stored.transposed},
           {.data = data[static_cast<size_t>(stored.type)],
            .stride = stored.transposed ? shape.depth : shape.columns,
            .type = stored.type,
            .transposed = stored.transposed},
           c.data());
  return c;
}

void expect_chains(
    ProductType type,
    const std::function<void(const ProductShape&, const Operand&, const Operand&, float*)>& multiply) {
  for (const ProductShape& shape : kShapes) {
    const std::vector<float> a = normal_values(shape.rows * shape.depth, 1);
    const std::vector<float> b = normal_values(shape.depth * shape.columns, 2);
    const std::vector<float> start = normal_values(shape.rows * shape.columns, 3);
    for (const DataType data : {DataType::fp32, DataType::bf16, DataType::fp16}) {
      std::vector<float> values = b;
      if (data == DataType::bf16) values = as_floats(rounded_to<Bf16>(b));
      if (data == DataType::fp16) values = as_floats(rounded_to<Fp16>(b));
      const std::vector<float> expected = reference(type, shape, a, values, start);
      for (const bool transposed : {false, true}) {
        const auto of_shape = [&](const Operand& left, const Operand& right, float* c) {
          multiply(shape, left, right, c);
        };
        expect_same(multiplied(of_shape, shape, {data, transposed}, a, b, start), expected,
                    name_of(data).data());
      }
    }
  }
}

class ProductInBf16 : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(ProductInBf16);

TEST_P(ProductInBf16, IsTheInstructionsChainForEveryShapeAndOperand) {
  Workers workers(2);
  ScratchOf scratch(workers);
  for (const ProductType type : {ProductType::bf16, ProductType::bf16_amx}) {
    const Products products(workers, GetParam(), type);
    expect_chains(type, [&](const ProductShape& shape, const Operand& a, const Operand& b, float* c) {
      products.multiply(shape, a, b, {.data = c, .stride = shape.columns, .accumulate = true}, scratch);
    });
  }
}

#if defined(__x86_64__)
// No machine here has AMX: its kernel is executed over tiles that are emulated.
TEST(ProductByTiles, IsTheChainOfAmxForEveryShapeAndOperand) {
  if (!is_supported(InstructionSet::avx512)) GTEST_SKIP() << "this machine has no AVX-512";
  AlignedFloats workspace(kernels::kProductWorkspaceFloats);
  expect_chains(ProductType::bf16_amx, [&](const ProductShape& shape, const Operand& a, const Operand& b,
                                           float* c) {
    const auto operand = [](const Operand& from) {
      return kernels::KernelOperand{from.data, from.stride, kernels::format_of(from.type), from.transposed};
    };
    product_of_emulated_tiles({.rows = shape.rows,
                               .columns = shape.columns,
                               .depth = shape.depth,
                               .a = operand(a),
                               .b = operand(b),
                               .c = c,
                               .c_stride = shape.columns,
                               .start = c,
                               .start_stride = shape.columns,
                               .workspace = workspace.begin()});
  });
}
#endif

using NamedKernel = std::pair<const char*, kernels::ProductKernel>;

// Every kernel of the type that this machine can run.
std::vector<NamedKernel> all_kernels(ProductType type) {
  std::vector<NamedKernel> kernels;
  for (const InstructionSet set : supported_instruction_sets()) {
    const kernels::ProductKernels& table = kernels::product_kernels_of(set);
    kernels.push_back({name_of(set).data(), type == ProductType::bf16 ? table.bf16 : table.bf16_amx});
  }
  kernels.push_back({"the fastest", kernels::product_kernel(best_instruction_set(), type)});
#if defined(__x86_64__)
  if (type == ProductType::bf16_amx && is_supported(InstructionSet::avx512))
    kernels.push_back({"emulated tiles", product_of_emulated_tiles});
#endif
  return kernels;
}

// c = start + a * b for single numbers, a pair of depths in each element.
std::vector<float> pairs_by(kernels::ProductKernel kernel, const std::vector<float>& a,
                            const std::vector<float>& b, const std::vector<float>& start) {
  AlignedFloats workspace(kernels::kProductWorkspaceFloats);
  std::vector<float> c(start.size());
  for (size_t i = 0; i < start.size(); ++i) {
    kernel({.rows = 1,
            .columns = 1,
            .depth = 2,
            .a = {&a[2 * i], 2, kernels::Format::fp32, false},
            .b = {&b[2 * i], 1, kernels::Format::fp32, false},
            .c = &c[i],
            .c_stride = 1,
            .start = &start[i],
            .start_stride = 1,
            .workspace = workspace.begin()});
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
  std::mt19937 random(5);
  const auto number = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
  for (int i = 0; i < 5000; ++i) {
    const float a0 = number(), b0 = number(), a1 = number(), b1 = number();
    add(a0, b0, a1, b1, number());
  }
  for (const ProductType type : {ProductType::bf16, ProductType::bf16_amx}) {
    std::vector<float> expected;
    for (size_t i = 0; i < start.size(); ++i) {
      const std::vector<float> left = {a[2 * i], a[2 * i + 1]}, right = {b[2 * i], b[2 * i + 1]};
      expected.push_back(reference(type, {1, 1, 2}, left, right, {start[i]}).front());
    }
    for (const auto& [name, kernel] : all_kernels(type))
      expect_same(pairs_by(kernel, a, b, start), expected, name);
  }
}

}  // namespace
}  // namespace terrace::testing::products_bf16_test
