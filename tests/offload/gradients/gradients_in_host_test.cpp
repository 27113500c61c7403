// Gradients of one micro-batch below the device: in slots of their own, in those of their parameters, on
// nvme.
#include <terrace/offload/gradients/gradients_in_host.h>

#include <gtest/gtest.h>

#include <thread>

#include <terrace/offload/gradients/gradients_on_nvme.h>

#include "offload/gradients/store_rig.h"
#include "support/patience.h"

namespace terrace::gradients_in_host_test {
namespace {

constexpr ChunkId kChunk{1};

struct GradientsInHostTest : ::testing::Test {
  std::unique_ptr<GradientStore> store(bool take_over = false) {
    const AccumulationRules rules{DataType::fp32, {}, false, false};
    return rig.make_store(
        [&](GradientArithmetic& arithmetic) {
          StoreRig::Places places;
          places.push_back(std::make_unique<GradientsInHost>(rig.space, *rig.cache, arithmetic, rules,
                                                             rig.slots, take_over));
          if (io != nullptr)
            places.push_back(std::make_unique<GradientsOnNvme>(
                rig.run, rig.arena, SpillTier{rig.store.get(), io.get()}, arithmetic, rules));
          return places;
        },
        at_their_places);
  }
  void spill() {
    rig.plan.spill_slots = 1;
    rig.plan.spill_slot_bytes = rig.plan.slot_bytes;
    rig.make_store_of(rig.plan.slot_bytes);
    io = std::make_unique<io::IoThread>(io::make_engine({.kind = io::EngineKind::threads}));
  }

  StoreRig rig;
  const std::vector<std::byte*> at_their_places = std::vector<std::byte*>(HomesRig::kChunks);
  std::unique_ptr<io::IoThread> io;
};

TEST_F(GradientsInHostTest, LandInTheirSlotsAndAreCompleteThen) {
  const auto gradients = store();
  rig.make_gradient(kChunk, 3);
  gradients->land(rig.landing(kChunk));
  EXPECT_FALSE(rig.cache->has_gradient(kChunk));
  EXPECT_FALSE(gradients->is_complete(kChunk));
  gradients->finish_micro_batch(true);
  EXPECT_TRUE(gradients->is_complete(kChunk));
  EXPECT_TRUE(gradients->is_open(kChunk));
  EXPECT_EQ(gradients->gradient(kChunk), rig.slots[1]);
  EXPECT_TRUE(all_are(gradients->gradient(kChunk), to_bf16(3)));
  EXPECT_EQ(gradients->norm().sum_of_squares(), 9.0 * kTileElements);
  EXPECT_EQ(gradients->d2h_bytes(), rig.space.param_bytes(kChunk));
  gradients->release(kChunk);
  EXPECT_FALSE(gradients->is_complete(kChunk));
}

TEST_F(GradientsInHostTest, AreFinishedByAPollOnceTheirCopyIsOver) {
  const auto gradients = store();
  rig.make_gradient(kChunk, 1);
  gradients->land(rig.landing(kChunk));
  while (!gradients->is_complete(kChunk)) gradients->poll();
  EXPECT_TRUE(gradients->is_finite(kChunk));
}

TEST_F(GradientsInHostTest, AreZeroWhereNothingWasComputed) {
  const auto gradients = store();
  std::memset(rig.slots[1], 0x7f, rig.plan.slot_bytes);
  gradients->land_zero(rig.landing(kChunk));
  EXPECT_TRUE(gradients->is_complete(kChunk));
  EXPECT_TRUE(all_are(gradients->gradient(kChunk), to_bf16(0)));
  EXPECT_EQ(gradients->norm().sum_of_squares(), 0.0);
  EXPECT_EQ(gradients->d2h_bytes(), 0u);
}

TEST_F(GradientsInHostTest, DisplaceTheParametersWhoseSlotsTheyTakeOver) {
  for (const bool take_over : {false, true}) {
    const auto gradients = store(take_over);
    rig.make_gradient(kChunk, 1);
    gradients->land(rig.landing(kChunk));
    gradients->land_zero(rig.landing(ChunkId{2}));
    EXPECT_EQ(gradients->is_displaced(kChunk), take_over);
    EXPECT_EQ(gradients->is_displaced(ChunkId{2}), take_over);
    EXPECT_FALSE(gradients->is_displaced(ChunkId{0}));
    gradients->finish_micro_batch(true);
    gradients->end_displacement();
    EXPECT_FALSE(gradients->is_displaced(kChunk));
  }
}

TEST_F(GradientsInHostTest, WaitForACopyOutOfTheSlotThatTheyTakeOver) {
  const auto gradients = store(true);
  CacheSlot& slot = rig.cache->begin_fetch(kChunk, *rig.cache->take_unused());
  slot.in.begin(to_device_copy("parameters", kChunk));
  std::memset(rig.slots[1], 1, rig.plan.slot_bytes);
  bool is_as_it_was = false;
  std::thread copy([&] {
    EXPECT_TRUE(testing::comes_true([&] { return rig.watch.current().has_value(); }));
    is_as_it_was = rig.slots[1][0] == std::byte{1};
    slot.in.complete_one();
  });
  gradients->land_zero(rig.landing(kChunk));
  copy.join();
  EXPECT_TRUE(is_as_it_was);
  EXPECT_TRUE(all_are(gradients->gradient(kChunk), to_bf16(0)));
}

TEST_F(GradientsInHostTest, GoToNvmeThroughALandingSlotThatOneOfThemHasAtATime) {
  spill();
  const auto gradients = store();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    rig.make_gradient(ChunkId{c}, static_cast<float>(c));
    gradients->land(rig.landing(ChunkId{c}));
  }
  gradients->finish_micro_batch(true);
  EXPECT_EQ(gradients->landing_write_bytes(), HomesRig::kChunks * rig.plan.slot_bytes);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    const ChunkId chunk{c};
    EXPECT_FALSE(gradients->is_held(chunk));
    EXPECT_TRUE(gradients->is_complete(chunk));
    ASSERT_TRUE(gradients->start_open(chunk, *rig.engine));
    while (!gradients->is_open(chunk)) rig.engine->wait(1);
    EXPECT_TRUE(all_are(gradients->gradient(chunk), to_bf16(static_cast<float>(c))));
    gradients->release(chunk);
  }
  EXPECT_EQ(gradients->opening_read_bytes(), HomesRig::kChunks * rig.plan.slot_bytes);
  EXPECT_EQ(gradients->norm().sum_of_squares(), 5.0 * kTileElements);
}

}  // namespace
}  // namespace terrace::gradients_in_host_test
