// Gradients that never leave the device: in their own slots, or accumulated.
#include <terrace/offload/gradients/gradients_on_device.h>

#include <gtest/gtest.h>

#include "offload/gradients/store_rig.h"

namespace terrace::gradients_on_device_test {
namespace {

constexpr ChunkId kChunk{1};

std::unique_ptr<GradientStore> store_of(StoreRig& rig, const AccumulationRules& rules) {
  return rig.make_store([&](GradientArithmetic& arithmetic) {
    StoreRig::Places places;
    places.push_back(std::make_unique<GradientsOnDevice>(rig.run, *rig.cache, arithmetic, rules));
    return places;
  });
}

TEST(GradientsOnDevice, StayInTheirSlotsUntilTheyAreReleased) {
  StoreRig rig;
  const auto store = store_of(rig, {DataType::fp32, {}, false, false});
  GradientStore& gradients = *store;
  rig.make_gradient(kChunk, 2);
  gradients.land(rig.landing(kChunk));
  EXPECT_TRUE(gradients.is_complete(kChunk));
  EXPECT_TRUE(rig.cache->has_gradient(kChunk));
  EXPECT_EQ(gradients.norm().sum_of_squares(), 4.0 * kTileElements);
  gradients.open(kChunk);
  EXPECT_TRUE(all_are(gradients.gradient(kChunk), to_bf16(2)));
  gradients.close(kChunk);
  gradients.release(kChunk);
  EXPECT_FALSE(rig.cache->has_gradient(kChunk));
  EXPECT_FALSE(gradients.is_complete(kChunk));
  EXPECT_EQ(rig.device.d2h_bytes(), 0u);
}

TEST(GradientsOnDevice, TakeASlotForZeros) {
  StoreRig rig;
  const auto store = store_of(rig, {DataType::fp32, {}, false, false});
  GradientStore& gradients = *store;
  gradients.land_zero(rig.landing(kChunk));
  EXPECT_TRUE(gradients.is_complete(kChunk));
  gradients.open(kChunk);
  EXPECT_TRUE(all_are(gradients.gradient(kChunk), to_bf16(0)));
  gradients.close(kChunk);
  gradients.release(kChunk);
}

struct AccumulatedOnDeviceTest : ::testing::TestWithParam<bool> {
  AccumulatedOnDeviceTest() : rig({.budget_bytes = 8 * kMiB, .strict = GetParam()}) {
    rig.plan.device_accumulator_slots = HomesRig::kChunks;
    gradients = store_of(rig, {DataType::fp32, {2}, false});
  }
  void land(uint32_t micro_batch, float value) {
    rig.make_gradient(kChunk, value);
    gradients->land(rig.landing(kChunk, micro_batch, 2));
  }
  bool holds(float value) {
    gradients->open(kChunk);
    const bool holds = all_are(gradients->gradient(kChunk), value);
    gradients->close(kChunk);
    return holds;
  }

  StoreRig rig;
  std::unique_ptr<GradientStore> gradients;
};
INSTANTIATE_TEST_SUITE_P(Strict, AccumulatedOnDeviceTest, ::testing::Bool());

TEST_P(AccumulatedOnDeviceTest, AreAddedAtOnceAndGiveTheirSlotsBack) {
  land(0, 1);
  EXPECT_FALSE(rig.cache->has_gradient(kChunk));
  EXPECT_FALSE(gradients->is_complete(kChunk));
  land(1, 2);
  EXPECT_TRUE(gradients->is_complete(kChunk));
  EXPECT_TRUE(holds(3));
  EXPECT_EQ(gradients->norm().sum_of_squares(), 9.0 * kTileElements);
}

TEST_P(AccumulatedOnDeviceTest, CountZerosWhicheverMicroBatchHasThem) {
  gradients->land_zero(rig.landing(kChunk, 0, 2));
  land(1, 2);
  EXPECT_TRUE(holds(2));
  land(0, 5);
  gradients->land_zero(rig.landing(kChunk, 1, 2));
  EXPECT_TRUE(gradients->is_complete(kChunk));
  EXPECT_TRUE(holds(5));
  EXPECT_EQ(gradients->norm().sum_of_squares(), 25.0 * kTileElements);
}

}  // namespace
}  // namespace terrace::gradients_on_device_test
