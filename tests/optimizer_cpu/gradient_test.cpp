#include <terrace/optimizer_cpu/gradient.h>

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "adam_problem.h"
#include "instruction_set_cases.h"

namespace terrace {
namespace {

class GradientKernel : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(GradientKernel);

// `count` random elements, displaced by one byte.
std::vector<std::byte> random_elements(DataType type, size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(1 + count * bytes_of(type));
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < count; ++i) set_element(bytes.data() + 1, type, i, normal(random));
  return bytes;
}

TEST_P(GradientKernel, AccumulatesEverySizeInFp32) {
  std::mt19937 random(21);
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    for (size_t count = 0; count <= 70; ++count) {
      const std::vector<std::byte> first = random_elements(type, count, random);
      const std::vector<std::byte> second = random_elements(type, count, random);
      std::vector<float> sum(count + 2, 99.0f);
      accumulate(GetParam(), sum.data() + 1, first.data() + 1, type, count, true);
      accumulate(GetParam(), sum.data() + 1, second.data() + 1, type, count, false);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(sum[i + 1], element(first.data() + 1, type, i) + element(second.data() + 1, type, i));
      }
      EXPECT_EQ(sum.front(), 99.0f);
      EXPECT_EQ(sum.back(), 99.0f);
    }
  }
}

// The order of gradient.h, spelt out.
double sum_in_lanes(const std::byte* gradient, DataType type, size_t count) {
  std::array<double, 16> lane{};
  for (size_t i = 0; i < count; ++i) {
    const double value = element(gradient, type, i);
    lane[i % 16] += value * value;
  }
  const auto pair = [&](size_t i) { return (lane[i] + lane[i + 8]) + (lane[i + 4] + lane[i + 12]); };
  return (pair(0) + pair(2)) + (pair(1) + pair(3));
}

TEST_P(GradientKernel, SumsSquaresInTheOneOrderThatEveryInstructionSetUses) {
  std::mt19937 random(22);
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    for (size_t count = 0; count <= kSumBlockElements; count += count < 70 ? 1 : 671) {
      const std::vector<std::byte> gradient = random_elements(type, count, random);
      const double sum = sum_of_squares_block(GetParam(), gradient.data() + 1, type, count);
      EXPECT_EQ(std::bit_cast<uint64_t>(sum),
                std::bit_cast<uint64_t>(sum_in_lanes(gradient.data() + 1, type, count)))
          << count << " elements of " << name_of(type);
    }
  }
}

TEST_P(GradientKernel, SumsSquaresThatFp32CannotHold) {
  std::vector<float> huge(kSumBlockElements, 3e38f);
  std::vector<float> tiny(kSumBlockElements, 3e-41f);
  const auto sum = [&](const std::vector<float>& values) {
    return sum_of_squares_block(GetParam(), reinterpret_cast<const std::byte*>(values.data()), DataType::fp32,
                                values.size());
  };
  const auto expected = [](float value) {
    return 4096 * (static_cast<double>(value) * static_cast<double>(value));
  };
  EXPECT_NEAR(sum(huge) / expected(3e38f), 1, 1e-14);
  EXPECT_NEAR(sum(tiny) / expected(3e-41f), 1, 1e-14);
}

TEST_P(GradientKernel, FindsOneInfiniteOrNanElementAnywhere) {
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t at = 0; at < 50; ++at) {
        std::vector<std::byte> gradient(50 * bytes_of(type));
        for (size_t i = 0; i < 50; ++i) set_element(gradient.data(), type, i, 3e38f);
        const std::array clean = {sum_of_squares_block(GetParam(), gradient.data(), type, 50)};
        EXPECT_TRUE(check_gradients(clean).finite);
        set_element(gradient.data(), type, at, bad);
        const std::array sums = {1.0, sum_of_squares_block(GetParam(), gradient.data(), type, 50), 2.0};
        EXPECT_FALSE(check_gradients(sums).finite) << bad << " at " << at;
      }
    }
  }
}

TEST(GradientCheck, AddsBlocksInTheirOrder) {
  const std::array sums = {1.0, 0x1p53, 1.0, -0x1p53};
  EXPECT_EQ(check_gradients(sums).sum_of_squares, ((1.0 + 0x1p53) + 1.0) - 0x1p53);
  EXPECT_EQ(check_gradients({}).sum_of_squares, 0);
  EXPECT_TRUE(check_gradients({}).finite);
}

TEST_P(GradientKernel, RoundsToBf16AsTheOneFunctionOfTheProjectDoes) {
  // Every upper half with the lower halves around each decision of the rounding.
  const std::array<uint32_t, 8> lower = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  std::vector<float> from;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t low : lower) from.push_back(std::bit_cast<float>(upper << 16 | low));
  }
  std::vector<Bf16> to(from.size());
  convert_to_bf16(GetParam(), from.data(), to.data(), from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(to[i].bits, to_bf16(from[i]).bits) << std::hex << std::bit_cast<uint32_t>(from[i]);
  }
}

TEST_P(GradientKernel, ConvertsEveryBf16ExactlyToFp32) {
  std::vector<Bf16> from(0x10000);
  for (uint32_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<uint16_t>(i);
  std::vector<float> to(from.size());
  convert_to_float(GetParam(), from.data(), to.data(), from.size());
  for (uint32_t i = 0; i < from.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(to[i]), i << 16);
}

TEST_P(GradientKernel, ConvertsEverySizeAndWritesNothingBeyond) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  for (size_t count = 0; count <= 70; ++count) {
    std::vector<float> values(count + 1);
    for (float& value : values) value = normal(random);
    std::vector<Bf16> narrow(count + 2, Bf16{0x5a5a});
    std::vector<float> wide(count + 2, 99.0f);
    convert_to_bf16(GetParam(), values.data() + 1, narrow.data() + 1, count);
    convert_to_float(GetParam(), narrow.data() + 1, wide.data() + 1, count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(wide[i + 1], to_float(to_bf16(values[i + 1])));
    EXPECT_EQ(narrow.front().bits, 0x5a5a);
    EXPECT_EQ(narrow.back().bits, 0x5a5a);
    EXPECT_EQ(wide.front(), 99.0f);
    EXPECT_EQ(wide.back(), 99.0f);
  }
}

TEST(GradientDeathTest, RefusesFp16AndOversizedBlocks) {
  const std::vector<std::byte> bytes(3 * kSumBlockElements * sizeof(float));
  float sum = 0;
  EXPECT_DEATH(accumulate(InstructionSet::scalar, &sum, bytes.data(), DataType::fp16, 1, true), "not fp16");
  EXPECT_DEATH(
      sum_of_squares_block(InstructionSet::scalar, bytes.data(), DataType::fp32, kSumBlockElements + 1),
      "a block of 4097");
}

}  // namespace
}  // namespace terrace
