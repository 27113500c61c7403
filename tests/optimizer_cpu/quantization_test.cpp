#include <terrace/optimizer_cpu/quantization.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/optimizer.h>

#include "element_access.h"
#include "instruction_set_cases.h"

namespace terrace::quantization_test {
namespace {

class Quantization : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(Quantization);

constexpr size_t kBlocks = 64;
constexpr size_t kCount = kBlocks * kQuantizedBlock;

float representable(DataType type, float value) {
  std::vector<std::byte> memory(sizeof(float));
  set_element(memory.data(), type, 0, value);
  return element(memory.data(), type, 0);
}

// Blocks of every order of magnitude that the type has, displaced by one byte; some are zeros.
std::vector<std::byte> random_values(DataType type, std::mt19937& random) {
  std::vector<std::byte> bytes(1 + kCount * bytes_of(type));
  std::normal_distribution<float> normal;
  const int least = type == DataType::fp16 ? -26 : -145, most = type == DataType::fp16 ? 14 : 125;
  std::uniform_int_distribution<int> exponent(least, most);
  for (size_t block = 0; block < kBlocks; ++block) {
    const int power = exponent(random);
    for (size_t i = 0; i < kQuantizedBlock; ++i) {
      const float value = block % 16 == 7 ? 0.0f : std::ldexp(normal(random), power);
      const float most_of_type = type == DataType::fp16 ? 65504.0f : 3.0e38f;
      set_element(bytes.data() + 1, type, block * kQuantizedBlock + i,
                  std::clamp(value, -most_of_type, most_of_type));
    }
  }
  return bytes;
}

std::vector<std::byte> rounded(InstructionSet set, uint32_t bits, const std::byte* values, DataType type,
                               DataType to) {
  std::vector<std::byte> result(1 + kCount * bytes_of(to));
  round_to_quantized(set, bits, values, type, result.data() + 1, to, kCount);
  return result;
}

// Written out in double, apart from the shared arithmetic.
TEST_P(Quantization, IsTheNearestOfTheLevelsOfEveryBlock) {
  std::mt19937 random(5);
  for (const DataType type : kEveryType) {
    for (const uint32_t bits : {8u, 4u}) {
      const double levels = bits == 8 ? 127 : 7;
      const std::vector<std::byte> values = random_values(type, random);
      const std::vector<std::byte> result = rounded(GetParam(), bits, values.data() + 1, type, type);
      for (size_t block = 0; block < kBlocks; ++block) {
        double largest = 0;
        for (size_t i = 0; i < kQuantizedBlock; ++i)
          largest = std::max<double>(largest,
                                     std::abs(element(values.data() + 1, type, block * kQuantizedBlock + i)));
        for (size_t i = 0; i < kQuantizedBlock; ++i) {
          const size_t at = block * kQuantizedBlock + i;
          const double value = element(values.data() + 1, type, at);
          const double near = element(result.data() + 1, type, at);
          if (largest < 0x1p-100) {
            ASSERT_EQ(near, 0) << name_of(type);
            continue;
          }
          // Half a step; that of the scale, which is rounded to bf16; and that of the type.
          const double close = largest / levels * 0.502 + largest * 0x1p-8 + 0x1p-25;
          ASSERT_NEAR(near, value, close) << name_of(type) << ", " << bits << " bits, element " << at;
          const double step = largest / levels;
          ASSERT_NEAR(near / step, std::round(near / step), levels * 0x1.1p-7 + 0x1p-25 / step) << at;
        }
      }
    }
  }
}

TEST_P(Quantization, LosesNothingTheSecondTime) {
  std::mt19937 random(6);
  for (int turn = 0; turn < 20; ++turn) {
    for (const DataType type : kEveryType) {
      for (const DataType to :
           type == DataType::fp32 ? std::vector{type} : std::vector{type, DataType::fp32}) {
        for (const uint32_t bits : {8u, 4u}) {
          const std::vector<std::byte> values = random_values(type, random);
          const std::vector<std::byte> once = rounded(GetParam(), bits, values.data() + 1, type, to);
          ASSERT_EQ(rounded(GetParam(), bits, once.data() + 1, to, to), once) << name_of(type);
          std::vector<std::byte> codes(quantized_bytes(kCount, bits)), of_rounded(codes.size());
          quantize(GetParam(), bits, values.data() + 1, type, kCount, codes.data());
          quantize(GetParam(), bits, once.data() + 1, to, kCount, of_rounded.data());
          ASSERT_EQ(of_rounded, codes) << name_of(type) << ", " << bits << " bits";
          std::vector<std::byte> back(once.size());
          dequantize(GetParam(), bits, codes.data(), back.data() + 1, to, kCount);
          ASSERT_EQ(back, once) << name_of(type) << ", " << bits << " bits";
        }
      }
    }
  }
}

TEST_P(Quantization, HasTheBitsOfTheScalarKernels) {
  std::mt19937 random(7);
  for (const DataType type : kEveryType) {
    for (const uint32_t bits : {8u, 4u}) {
      const std::vector<std::byte> values = random_values(type, random);
      std::vector<std::byte> mine(quantized_bytes(kCount, bits)), scalar(mine.size());
      quantize(GetParam(), bits, values.data() + 1, type, kCount, mine.data());
      quantize(InstructionSet::scalar, bits, values.data() + 1, type, kCount, scalar.data());
      ASSERT_EQ(mine, scalar) << name_of(type);
      ASSERT_EQ(rounded(GetParam(), bits, values.data() + 1, type, type),
                rounded(InstructionSet::scalar, bits, values.data() + 1, type, type))
          << name_of(type);
    }
  }
}

TEST_P(Quantization, MakesNanOfABlockThatIsNotFinite) {
  for (const DataType type : kEveryType) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<std::byte> values(1 + kCount * bytes_of(type));
      for (size_t i = 0; i < kCount; ++i) set_element(values.data() + 1, type, i, 1.5f);
      set_element(values.data() + 1, type, kQuantizedBlock + 3, bad);
      const std::vector<std::byte> result = rounded(GetParam(), 8, values.data() + 1, type, type);
      for (size_t i = 0; i < kCount; ++i) {
        const float value = element(result.data() + 1, type, i);
        if (i / kQuantizedBlock == 1) {
          ASSERT_TRUE(std::isnan(value)) << i;
        } else {
          ASSERT_EQ(value, 1.5f) << i;
        }
      }
      ASSERT_EQ(rounded(GetParam(), 8, result.data() + 1, type, type), result);
    }
  }
}

TEST_P(Quantization, KeepsTheGreatestNumbersFinite) {
  for (const DataType type : kEveryType) {
    const float most = type == DataType::fp32   ? std::numeric_limits<float>::max()
                       : type == DataType::bf16 ? representable(type, 3.38e38f)
                                                : 65504.0f;
    std::vector<std::byte> values(1 + kCount * bytes_of(type));
    for (size_t i = 0; i < kCount; ++i) set_element(values.data() + 1, type, i, i % 2 == 0 ? most : -most);
    const std::vector<std::byte> result = rounded(GetParam(), 8, values.data() + 1, type, type);
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(element(result.data() + 1, type, i) / most, i % 2 == 0 ? 1 : -1, 0x1p-7) << name_of(type);
  }
}

TEST_P(Quantization, OfAPartOfABlockIsThatOfItsZerosToo) {
  std::mt19937 random(10);
  for (const DataType type : kEveryType) {
    const size_t count = 5 * kQuantizedBlock + 7;
    std::vector<std::byte> values = random_values(type, random);
    std::vector<std::byte> part(count * bytes_of(type));
    round_to_quantized(GetParam(), 8, values.data() + 1, type, part.data(), type, count);
    for (size_t i = count; i < 6 * kQuantizedBlock; ++i) set_element(values.data() + 1, type, i, 0);
    std::vector<std::byte> whole = rounded(GetParam(), 8, values.data() + 1, type, type);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1)) << name_of(type);
  }
}

TEST(QuantizedBytes, AreTheScaleAndTheCodesOfEveryBlock) {
  EXPECT_EQ(quantized_bytes(0, 8), 0u);
  EXPECT_EQ(quantized_bytes(64, 8), 66u);
  EXPECT_EQ(quantized_bytes(64, 4), 34u);
  EXPECT_EQ(quantized_bytes(4096, 8), 4224u);
}

// A sum of what was rounded, in the accumulator's type.
TEST_P(Quantization, OfAnAdditionIsThatOfWhatIsAdded) {
  std::mt19937 random(8);
  for (const DataType type : kEveryType) {
    for (const DataType to : type == DataType::fp32 ? std::vector{type} : std::vector{type, DataType::fp32}) {
      for (const bool first : {true, false}) {
        const std::vector<std::byte> values = random_values(type, random);
        const std::vector<std::byte> rounded_values = rounded(GetParam(), 4, values.data() + 1, type, to);
        std::vector<std::byte> sum(kCount * bytes_of(to), std::byte{0}), expected(sum);
        accumulate(GetParam(), {sum.data(), to, values.data() + 1, type, kCount, first, 4});
        accumulate(GetParam(), {expected.data(), to, rounded_values.data() + 1, to, kCount, first});
        ASSERT_EQ(sum, expected) << name_of(type) << " into " << name_of(to);
        std::vector<std::byte> fused(kCount * bytes_of(to), std::byte{0});
        const double squares =
            accumulate_block(GetParam(), {fused.data(), to, values.data() + 1, type, kCount, first, 4});
        ASSERT_EQ(fused, expected);
        const double expected_squares = sum_of_squares_block(GetParam(), expected.data(), to, kCount);
        ASSERT_EQ(std::bit_cast<uint64_t>(squares), std::bit_cast<uint64_t>(expected_squares));
      }
    }
  }
}

// An update leaves rounded parameters beside the masters that it would leave without.
TEST_P(Quantization, OfParametersLeavesMastersAlone) {
  constexpr size_t kFirst = 128, kElements = 1024;
  for (const DataType type : {DataType::bf16, DataType::fp16}) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    const RecordLayout layout;
    std::vector<std::byte> record(layout.tile_bytes());
    for (size_t i = 0; i < kTileElements; ++i) set_element(record.data(), DataType::fp32, i, normal(random));
    std::vector<std::byte> gradients(kTileElements * sizeof(float));
    for (size_t i = 0; i < kTileElements; ++i)
      set_element(gradients.data(), DataType::fp32, i, normal(random));
    std::vector<std::byte> exact_record = record, exact(kTileElements * bytes_of(type)), parameters(exact);
    const OptimizerStep step = make_optimizer_step({}, 1);
    TileRun tiles{.layout = layout,
                  .record = exact_record.data(),
                  .gradients = gradients.data(),
                  .parameters = exact.data(),
                  .parameter_type = type,
                  .first_element = kFirst,
                  .element_count = kElements};
    update_tiles(GetParam(), step, tiles);
    tiles.record = record.data();
    tiles.parameters = parameters.data();
    tiles.parameter_bits = 8;
    update_tiles(GetParam(), step, tiles);
    EXPECT_EQ(record, exact_record);
    const size_t begin = kFirst * bytes_of(type);
    round_to_quantized(GetParam(), 8, exact.data() + begin, type, exact.data() + begin, type, kElements);
    EXPECT_EQ(parameters, exact) << name_of(type);
  }
}

}  // namespace
}  // namespace terrace::quantization_test
