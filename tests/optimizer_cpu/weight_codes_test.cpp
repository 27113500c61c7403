#include <terrace/optimizer_cpu/weight_codes.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "element_access.h"
#include "instruction_set_cases.h"

namespace terrace::weight_codes_test {
namespace {

class WeightCodes : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(WeightCodes);

constexpr WeightCode kForms[] = {WeightCode::nf4, WeightCode::int8};
constexpr size_t kCount = 130 * kCodedBlock + 17;  // more blocks than are coded at once, and a short one

std::vector<float> random_values() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-120, 120);
  std::vector<float> values(kCount);
  int power = 0;
  for (size_t i = 0; i < kCount; ++i) {
    if (i % kCodedBlock == 0) power = exponent(random);
    values[i] = i / kCodedBlock == 5 ? 0.0f : std::ldexp(normal(random), power);
  }
  return values;
}

std::vector<std::byte> encoded(WeightCode code, std::span<const float> values) {
  std::vector<std::byte> words(CodedWeight{code, values.size()}.words() * sizeof(float));
  encode_weights(code, values, words.data());
  return words;
}

std::vector<float> decoded(InstructionSet set, WeightCode code, const std::vector<std::byte>& words,
                           DataType type, size_t count) {
  std::vector<std::byte> memory(1 + count * bytes_of(type));
  decode_weights(set, code, words.data(), memory.data() + 1, type, count);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(memory.data() + 1, type, i);
  return values;
}

// Found by looking at all levels in double, apart from the shared arithmetic.
TEST_P(WeightCodes, AreTheNearestLevelsOfEveryBlock) {
  const std::vector<float> values = random_values();
  for (const WeightCode code : kForms) {
    std::vector<double> levels;
    for (int level = -127; level <= 127 && code == WeightCode::int8; ++level) levels.push_back(level / 127.0);
    for (uint32_t level = 0; level < 16 && code == WeightCode::nf4; ++level)
      levels.push_back(kernels::nf4_value(level));
    const std::vector<float> near = decoded(GetParam(), code, encoded(code, values), DataType::fp32, kCount);
    for (size_t first = 0; first < kCount; first += kCodedBlock) {
      const size_t end = std::min(first + kCodedBlock, kCount);
      double largest = 0;
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(double{values[i]}));
      for (size_t i = first; i < end; ++i) {
        double least = HUGE_VAL;
        for (const double level : levels) least = std::min(least, std::abs(values[i] - level * largest));
        ASSERT_LE(std::abs(double{values[i]} - near[i]), least + largest * 1e-6) << name_of(code) << " " << i;
      }
    }
  }
}

TEST_P(WeightCodes, AreRoundedOnceToEveryType) {
  const std::vector<float> values = random_values();
  for (const WeightCode code : kForms) {
    const std::vector<std::byte> words = encoded(code, values);
    const std::vector<float> wide = decoded(InstructionSet::scalar, code, words, DataType::fp32, kCount);
    for (const DataType type : kEveryType) {
      const std::vector<float> narrow = decoded(GetParam(), code, words, type, kCount);
      std::vector<std::byte> memory(sizeof(float));
      for (size_t i = 0; i < kCount; ++i) {
        set_element(memory.data(), type, 0, wide[i]);
        ASSERT_EQ(narrow[i], element(memory.data(), type, 0))
            << name_of(code) << " " << name_of(type) << " " << i;
      }
    }
  }
}

TEST(WeightCode, HaveFourAndAHalfAndEightAndAHalfBits) {
  EXPECT_EQ((CodedWeight{WeightCode::nf4, 6400}.words() * 32), 6400u * 9 / 2);
  EXPECT_EQ((CodedWeight{WeightCode::int8, 6400}.words() * 32), 6400u * 17 / 2);
  EXPECT_EQ((CodedWeight{WeightCode::nf4, 65}.words()), 18u);
}

// An element is made of a byte alone, wherever kernels find it; the first of a pair is in the upper half.
TEST(WeightCode, HaveTheirPlacesInTheWords) {
  std::vector<float> values(kCodedBlock, 0.0f);
  values[0] = -2.0f, values[1] = 2.0f;
  const std::vector<std::byte> nf4 = encoded(WeightCode::nf4, values),
                               int8 = encoded(WeightCode::int8, values);
  EXPECT_EQ(nf4[4], std::byte{0x0f});
  EXPECT_EQ(nf4[5], std::byte{0x77});
  EXPECT_EQ(int8[4], std::byte{0x81});
  EXPECT_EQ(int8[5], std::byte{0x7f});
  for (uint64_t i = 0; i < kCodedBlock; ++i) {
    EXPECT_EQ(kernels::code_value(WeightCode::nf4, nf4.data() + 4, i), values[i] / 2);
    EXPECT_EQ(kernels::code_value(WeightCode::int8, int8.data() + 4, i), values[i] / 2 * 127);
  }
}

TEST(WeightCode, FillAnyRunOfWords) {
  const std::vector<float> values = random_values();
  for (const WeightCode code : kForms) {
    const CodedWeight weight{code, kCount};
    const std::vector<std::byte> all = encoded(code, values);
    for (const uint64_t first : {0u, 1u, 8u, 9u, 600u}) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{9}, uint64_t{40}, weight.words() - first}) {
        std::vector<float> words(count);
        fill_words(weight, first, words, [&](uint64_t element, std::span<float> out) {
          ASSERT_LE(element + out.size(), kCount);
          std::copy_n(values.begin() + static_cast<ptrdiff_t>(element), out.size(), out.begin());
        });
        EXPECT_EQ(std::memcmp(words.data(), all.data() + first * sizeof(float), count * sizeof(float)), 0)
            << name_of(code) << " " << first << " " << count;
      }
    }
  }
}

TEST(WeightCode, HaveNames) {
  for (const WeightCode code : {WeightCode::none, WeightCode::nf4, WeightCode::int8})
    EXPECT_EQ(weight_code_from_name(name_of(code)), code);
  EXPECT_EQ(weight_code_from_name("fp4"), std::nullopt);
}

}  // namespace
}  // namespace terrace::weight_codes_test
