#include <terrace/optimizer_cpu/exact_sum.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/bit_sum.h"
#include "support/sanitized.h"

namespace terrace::exact_sum_test {
namespace {

constexpr double kLeast = 0x1p-298;  // the square of the least fp32
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sums of squares of fp32 elements: of one size, of every size, and of the ends of what there is.
std::vector<double> random_sums(size_t count, std::mt19937_64& random) {
  std::vector<double> sums;
  for (size_t i = 0; i < count; ++i) {
    const int range = i % 3 == 0 ? 20 : 566;
    const int exponent =
        i % 7 == 0 ? (random() % 2 == 0 ? -298 : 268) : 268 - static_cast<int>(random() % range);
    const double value = std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52, exponent);
    sums.push_back(std::floor(value / kLeast) * kLeast);  // a multiple of the least square
  }
  return sums;
}

double exact(const std::vector<double>& values) {
  testing::BitSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

double added(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, IsTheCorrectlyRoundedSum) {
  std::mt19937_64 random(31);
  for (size_t count = 0; count < 400; ++count) {
    const std::vector<double> values = random_sums(count, random);
    ASSERT_EQ(added(values), exact(values)) << count;
  }
  const std::vector<double> many = random_sums(1'000'000 / testing::kOneIn, random);
  EXPECT_EQ(added(many), exact(many));
}

TEST(ExactSum, RoundsTiesToEven) {
  EXPECT_EQ(added({0x1p53, 1}), 0x1p53);
  EXPECT_EQ(added({0x1p53 + 2, 1}), 0x1p53 + 4);
  EXPECT_EQ(added({0x1p53, 1, kLeast}), 0x1p53 + 2);
  EXPECT_EQ(added({0x1p53 + 2, 1 - 0x1p-53}), 0x1p53 + 2);
  EXPECT_EQ(added({0x1p268, kLeast}), 0x1p268);
  EXPECT_EQ(added({kLeast}), kLeast);
  EXPECT_EQ(added({}), 0);
}

TEST(ExactSum, IsTheSameInEveryOrderAndOfAnyParts) {
  std::mt19937_64 random(32);
  std::vector<double> values = random_sums(10'000, random);
  const double expected = added(values);
  for (int round = 0; round < 20; ++round) {
    std::ranges::shuffle(values, random);
    std::vector<ExactSum> parts(1 + random() % 6);
    for (const double value : values) parts[random() % parts.size()].add(value);
    ExactSum sum;
    for (const ExactSum& part : parts) sum.merge(part);
    ASSERT_EQ(sum.value(), expected);
  }
}

// As many as a limb takes before it must be carried, by merging a sum with itself.
TEST(ExactSum, HasRoomForEveryBlockThatThereCanBe) {
  ExactSum sum;
  sum.add(0x1p268);
  sum.add(0x1.fffffffffffffp268 - 0x1p268);
  for (int doublings = 0; doublings < 46; ++doublings) sum.merge(ExactSum(sum));
  EXPECT_EQ(sum.value(), std::ldexp(0x1.fffffffffffffp268, 46));
}

TEST(ExactSum, KeepsWhatIsNotFinite) {
  ExactSum sum;
  EXPECT_TRUE(sum.is_finite());
  sum.add(kInfinity);
  sum.add(1);
  EXPECT_FALSE(sum.is_finite());
  EXPECT_EQ(sum.value(), kInfinity);
  ExactSum other;
  other.add(2);
  other.merge(sum);
  EXPECT_FALSE(other.is_finite());
  other.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(other.value()));
}

}  // namespace
}  // namespace terrace::exact_sum_test
