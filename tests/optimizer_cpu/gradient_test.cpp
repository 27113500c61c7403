#include <terrace/optimizer_cpu/gradient.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include <random>
#include <vector>

#include "element_access.h"
#include "instruction_set_cases.h"

namespace terrace::gradient_test {
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

// What `type` accumulates in: fp32, and itself.
std::vector<DataType> accumulators_of(DataType type) {
  return type == DataType::fp32 ? std::vector{type} : std::vector{DataType::fp32, type};
}

TEST_P(GradientKernel, AccumulatesEverySizeInFp32OrTheGradientsOwnType) {
  std::mt19937 random(21);
  for (const DataType type : kEveryType) {
    for (const DataType to : accumulators_of(type)) {
      for (size_t count = 0; count <= 70; ++count) {
        const std::vector<std::byte> first = random_elements(type, count, random);
        const std::vector<std::byte> second = random_elements(type, count, random);
        std::vector<std::byte> sum((count + 2) * bytes_of(to), std::byte{0x5a});
        std::byte* const begin = sum.data() + bytes_of(to);
        accumulate(GetParam(), {begin, to, first.data() + 1, type, count, true});
        accumulate(GetParam(), {begin, to, second.data() + 1, type, count, false});
        for (size_t i = 0; i < count; ++i) {
          const float exact = element(first.data() + 1, type, i) + element(second.data() + 1, type, i);
          ASSERT_EQ(element(begin, to, i), rounded(exact, to)) << name_of(type) << " into " << name_of(to);
        }
        for (size_t k = 0; k < bytes_of(to); ++k) {
          ASSERT_EQ(sum[k], std::byte{0x5a});
          ASSERT_EQ(sum[sum.size() - 1 - k], std::byte{0x5a});
        }
      }
    }
  }
}

TEST_P(GradientKernel, OverflowsToInfinityWhereAnAccumulatorInFp16Cannot) {
  std::vector<std::byte> sum(40 * sizeof(Fp16)), gradient(sum);
  for (size_t i = 0; i < 40; ++i) {
    set_element(sum.data(), DataType::fp16, i, 60000.0f);
    set_element(gradient.data(), DataType::fp16, i, i % 2 == 0 ? 6000.0f : 5000.0f);
  }
  accumulate(GetParam(), {sum.data(), DataType::fp16, gradient.data(), DataType::fp16, 40, false});
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isinf(element(sum.data(), DataType::fp16, i)), i % 2 == 0);
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
  for (const DataType type : kEveryType) {
    for (size_t count = 0; count <= kSumBlockElements; count += count < 70 ? 1 : 671) {
      const std::vector<std::byte> gradient = random_elements(type, count, random);
      const double sum = sum_of_squares_block(GetParam(), gradient.data() + 1, type, count);
      EXPECT_EQ(std::bit_cast<uint64_t>(sum),
                std::bit_cast<uint64_t>(sum_in_lanes(gradient.data() + 1, type, count)))
          << count << " elements of " << name_of(type);
    }
  }
}

// Random elements, some of them infinite, NaN (signalling as well), huge or denormal.
std::vector<std::byte> awkward_elements(DataType type, size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes = random_elements(type, count, random);
  for (size_t i = 0; i < count; ++i) {
    if (random() % 4 != 0) continue;
    for (size_t k = 0; k < bytes_of(type); ++k) {
      bytes[1 + i * bytes_of(type) + k] = static_cast<std::byte>(random());
    }
  }
  return bytes;
}

TEST_P(GradientKernel, AccumulatesABlockAndSumsItsSquaresAsTheTwoPassesDo) {
  std::mt19937 random(23);
  for (const DataType type : kEveryType) {
    for (const DataType to : accumulators_of(type)) {
      for (size_t count = 0; count <= kSumBlockElements; count += count < 70 ? 1 : 671) {
        for (const bool awkward : {false, true}) {
          const auto elements = awkward ? awkward_elements : random_elements;
          const std::vector<std::byte> before = elements(to, count, random);
          const std::vector<std::byte> gradient = elements(type, count, random);
          for (const bool first : {false, true}) {
            std::vector<std::byte> apart = before, fused = before;
            const auto block = [&](std::vector<std::byte>& accumulator) {
              return Accumulation{accumulator.data() + 1, to, gradient.data() + 1, type, count, first};
            };
            accumulate(GetParam(), block(apart));
            const double expected = sum_of_squares_block(GetParam(), apart.data() + 1, to, count);
            const double sum = accumulate_block(GetParam(), block(fused));
            for (size_t i = 0; i < count; ++i) {
              ASSERT_TRUE(same(element(apart.data() + 1, to, i), element(fused.data() + 1, to, i)))
                  << "element " << i << ", " << name_of(type) << " into " << name_of(to);
            }
            ASSERT_TRUE(std::bit_cast<uint64_t>(sum) == std::bit_cast<uint64_t>(expected) ||
                        (std::isnan(sum) && std::isnan(expected)))
                << count << " elements of " << name_of(type) << " into " << name_of(to);
          }
        }
      }
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
  for (const DataType type : kEveryType) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t at = 0; at < 50; ++at) {
        std::vector<std::byte> gradient(50 * bytes_of(type));
        for (size_t i = 0; i < 50; ++i) {
          set_element(gradient.data(), type, i, type == DataType::fp16 ? 65504.0f : 3e38f);
        }
        GradientNorm clean;
        clean.add_blocks(std::array{sum_of_squares_block(GetParam(), gradient.data(), type, 50)});
        EXPECT_TRUE(clean.finite());
        set_element(gradient.data(), type, at, bad);
        GradientNorm norm;
        norm.add_blocks(std::array{1.0, sum_of_squares_block(GetParam(), gradient.data(), type, 50), 2.0});
        EXPECT_FALSE(norm.finite()) << bad << " at " << at;
      }
    }
  }
}

TEST(GradientNorm, RoundsOnceHoweverTheBlocksCome) {
  GradientNorm up, down, merged;
  up.add_blocks(std::array{1.0, 1.0, 0x1p53});
  down.add_blocks(std::array{0x1p53, 1.0, 1.0});
  EXPECT_EQ(up.sum_of_squares(), 0x1p53 + 2);
  EXPECT_EQ(down.sum_of_squares(), 0x1p53 + 2);
  merged.add_blocks(std::array{0x1p53, 1.0});
  GradientNorm rest;
  rest.add_blocks(std::array{1.0});
  merged.merge(rest);
  EXPECT_EQ(merged.sum_of_squares(), 0x1p53 + 2);
  EXPECT_EQ(GradientNorm{}.sum_of_squares(), 0);
  EXPECT_TRUE(GradientNorm{}.finite());
}

TEST(GradientNorm, DividesByTheScaleOfTheGradients) {
  GradientNorm norm;
  norm.add_blocks(std::array{4.0, 5.0});
  EXPECT_EQ(norm.norm(), 3.0);
  EXPECT_EQ(norm.norm(2.0), 1.5);
}

TEST_P(GradientKernel, RoundsAsTheOneFunctionOfTheProjectDoes) {
  // Every upper half with the lower halves around each decision of a rounding.
  const std::array<uint32_t, 12> lower = {0,      1,      0x0fff, 0x1000, 0x1001, 0x3000,
                                          0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  std::vector<float> from;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t low : lower) from.push_back(std::bit_cast<float>(upper << 16 | low));
  }
  std::vector<Bf16> bf16(from.size());
  std::vector<Fp16> fp16(from.size());
  convert_from_float(GetParam(), from.data(), reinterpret_cast<std::byte*>(bf16.data()), DataType::bf16,
                     from.size());
  convert_from_float(GetParam(), from.data(), reinterpret_cast<std::byte*>(fp16.data()), DataType::fp16,
                     from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(bf16[i].bits, to_bf16(from[i]).bits) << std::hex << std::bit_cast<uint32_t>(from[i]);
    ASSERT_EQ(fp16[i].bits, to_fp16(from[i]).bits) << std::hex << std::bit_cast<uint32_t>(from[i]);
  }
}

TEST_P(GradientKernel, WidensEvery16BitValueExactly) {
  std::vector<uint16_t> from(0x10000);
  for (uint32_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i);
  const auto* bytes = reinterpret_cast<const std::byte*>(from.data());
  std::vector<float> bf16(from.size()), fp16(from.size());
  convert_to_float(GetParam(), bytes, DataType::bf16, bf16.data(), from.size());
  convert_to_float(GetParam(), bytes, DataType::fp16, fp16.data(), from.size());
  for (uint32_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), i << 16);
    ASSERT_EQ(std::bit_cast<uint32_t>(fp16[i]), std::bit_cast<uint32_t>(to_float(Fp16{from[i]})));
  }
}

TEST_P(GradientKernel, ConvertsEverySizeAndWritesNothingBeyond) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  for (const DataType type : kEveryType) {
    for (size_t count = 0; count <= 70; ++count) {
      std::vector<float> values(count + 1);
      for (float& value : values) value = normal(random);
      std::vector<std::byte> narrow((count + 2) * bytes_of(type), std::byte{0x5a});
      std::vector<float> wide(count + 2, 99.0f);
      convert_from_float(GetParam(), values.data() + 1, narrow.data() + bytes_of(type), type, count);
      convert_to_float(GetParam(), narrow.data() + bytes_of(type), type, wide.data() + 1, count);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(wide[i + 1], rounded(values[i + 1], type));
      for (size_t k = 0; k < bytes_of(type); ++k) {
        EXPECT_EQ(narrow[k], std::byte{0x5a});
        EXPECT_EQ(narrow[narrow.size() - 1 - k], std::byte{0x5a});
      }
      EXPECT_EQ(wide.front(), 99.0f);
      EXPECT_EQ(wide.back(), 99.0f);
    }
  }
}

TEST(GradientDeathTest, RefusesAccumulatorsOfAnother16BitTypeAndOversizedBlocks) {
  std::vector<std::byte> bytes(3 * kSumBlockElements * sizeof(float));
  EXPECT_DEATH(accumulate(InstructionSet::scalar,
                          {bytes.data(), DataType::fp16, bytes.data() + 64, DataType::bf16, 1, true}),
               "gradients in bf16 do not accumulate in fp16");
  EXPECT_DEATH(
      sum_of_squares_block(InstructionSet::scalar, bytes.data(), DataType::fp32, kSumBlockElements + 1),
      "a block of 4097");
}

}  // namespace
}  // namespace terrace::gradient_test
