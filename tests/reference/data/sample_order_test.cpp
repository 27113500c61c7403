#include <terrace/reference/data/sample_order.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace terrace::sample_order_test {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> epoch(const SampleOrder& order, uint64_t number) {
  std::vector<uint64_t> samples;
  for (uint64_t i = 0; i < order.sample_count(); ++i)
    samples.push_back(order.at(number * order.sample_count() + i));
  return samples;
}

TEST(SampleOrder, GivesEverySampleOncePerEpoch) {
  for (const uint64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
    const SampleOrder order(7, count);
    for (uint64_t number = 0; number < 3; ++number) {
      std::vector<uint64_t> seen(count);
      for (const uint64_t sample : epoch(order, number)) {
        ASSERT_LT(sample, count);
        ++seen[sample];
      }
      EXPECT_EQ(seen, std::vector<uint64_t>(count, 1)) << count << " samples, epoch " << number;
    }
  }
}

TEST(SampleOrder, DependsOnTheSeedAndTheEpochAlone) {
  const SampleOrder order(1, 500);
  EXPECT_EQ(epoch(order, 0), epoch(SampleOrder(1, 500), 0));
  EXPECT_NE(epoch(order, 0), epoch(order, 1));
  EXPECT_NE(epoch(order, 0), epoch(SampleOrder(2, 500), 0));
  EXPECT_EQ(order.epoch_of(499), 0u);
  EXPECT_EQ(order.epoch_of(500), 1u);
}

TEST(SampleOrder, IsFixedForGood) {
  // A resumed run of a later version sees the same samples.
  const SampleOrder order(42, 1000);
  EXPECT_THAT((std::array{order.at(0), order.at(1), order.at(999), order.at(1000), order.at(123'456'789)}),
              ElementsAre(193, 261, 518, 201, 400));
}

TEST(SampleOrder, PutsEverySampleAtEveryPlaceEquallyOften) {
  // Over many epochs of a small set: each of 10 samples at each of 10 places, 400 times expected.
  constexpr uint64_t kCount = 10;
  constexpr uint64_t kEpochs = 4000;
  std::array<std::array<uint32_t, kCount>, kCount> times{};
  const SampleOrder order(3, kCount);
  for (uint64_t i = 0; i < kCount * kEpochs; ++i) ++times[i % kCount][order.at(i)];
  for (const auto& place : times) {
    for (const uint32_t count : place) EXPECT_NEAR(count, 400, 120);  // six standard deviations
  }
}

TEST(SampleOrder, LeavesNoTraceOfTheFilesOrder) {
  // Neighbours of a random permutation of n are adjacent numbers about twice in all.
  const SampleOrder order(5, 20'000);
  const std::vector<uint64_t> samples = epoch(order, 0);
  uint32_t adjacent = 0;
  for (size_t i = 1; i < samples.size(); ++i) adjacent += samples[i] == samples[i - 1] + 1 ? 1 : 0;
  EXPECT_LT(adjacent, 10u);
}

TEST(SampleOrder, WorksOnMoreSamplesThanFitThirtyTwoBits) {
  const SampleOrder order(9, (uint64_t{1} << 40) + 12345);
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_LT(order.at(i), order.sample_count());
    ASSERT_NE(order.at(i), order.at(i + 1));
  }
}

}  // namespace
}  // namespace terrace::sample_order_test
