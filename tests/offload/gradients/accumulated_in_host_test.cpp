// Gradients of several micro-batches, accumulated in host memory or on their way to nvme.
#include <gtest/gtest.h>

#include <terrace/offload/gradients/gradients_in_host.h>
#include <terrace/offload/gradients/gradients_on_nvme.h>

#include "offload/gradients/store_rig.h"

namespace terrace::accumulated_in_host_test {
namespace {

constexpr ChunkId kChunk{1};
constexpr uint32_t kMicroBatches = 3;

struct AccumulatedInHostTest : ::testing::Test {
  AccumulatedInHostTest() : landing{rig.take(rig.plan.slot_bytes), rig.take(rig.plan.slot_bytes)} {}
  std::unique_ptr<GradientStore> store(bool layer_major = false, uint32_t group = 1) {
    const AccumulationRules rules{DataType::fp32, {kMicroBatches, 1, group}, layer_major};
    return rig.make_store(
        [&](GradientArithmetic& arithmetic) {
          StoreRig::Places places;
          places.push_back(
              std::make_unique<GradientsInHost>(rig.space, *rig.cache, arithmetic, rules, rig.slots));
          if (io != nullptr)
            places.push_back(std::make_unique<GradientsOnNvme>(
                rig.run, rig.arena, SpillTier{rig.store.get(), io.get()}, arithmetic, rules));
          return places;
        },
        landing, landing);
  }
  void spill() {
    rig.plan.spill_slots = 2;
    rig.plan.spill_slot_bytes = rig.plan.accumulator_slot_bytes;
    rig.make_store_of(rig.plan.accumulator_slot_bytes);
    io = std::make_unique<io::IoThread>(io::make_engine({.kind = io::EngineKind::threads}));
  }
  // Micro-batch m has gradients of m + 1 in every chunk, but for zeros in `zero`.
  void step(GradientStore& gradients, std::optional<uint32_t> zero = std::nullopt,
            bool open_together = false) {
    for (uint32_t m = 0; m < kMicroBatches; ++m) {
      for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
        if (m == zero) {
          gradients.land_zero(rig.landing(ChunkId{c}, m, kMicroBatches));
        } else {
          rig.make_gradient(ChunkId{c}, static_cast<float>(m + 1));
          gradients.land(rig.landing(ChunkId{c}, m, kMicroBatches));
        }
      }
      const bool is_last = m + 1 == kMicroBatches;
      if (!open_together || is_last) gradients.finish_micro_batch(is_last);
    }
  }
  void expect_opened(GradientStore& gradients, float value) {
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      ASSERT_TRUE(gradients.is_complete(ChunkId{c}));
      ASSERT_TRUE(gradients.start_open(ChunkId{c}, *rig.engine));
      while (!gradients.is_open(ChunkId{c})) rig.engine->wait(1);
      EXPECT_TRUE(all_are(gradients.gradient(ChunkId{c}), value));
      gradients.release(ChunkId{c});
    }
    EXPECT_EQ(gradients.norm().sum_of_squares(), double{value} * value * HomesRig::kChunks * kTileElements);
  }

  StoreRig rig;
  std::vector<std::byte*> landing;
  std::unique_ptr<io::IoThread> io;
};

TEST_F(AccumulatedInHostTest, AreTheSumOfAllMicroBatchesWhereverTheyAre) {
  for (const bool on_nvme : {false, true}) {
    if (on_nvme) spill();
    const auto gradients = store();
    EXPECT_EQ(gradients->type(kChunk), DataType::fp32);
    step(*gradients);
    EXPECT_EQ(gradients->is_held(kChunk), !on_nvme);
    expect_opened(*gradients, 6);
    EXPECT_EQ(gradients->d2h_bytes(), kMicroBatches * HomesRig::kChunks * rig.plan.slot_bytes);
  }
}

TEST_F(AccumulatedInHostTest, CountAMicroBatchOfZerosWhicheverItIs) {
  for (const bool on_nvme : {false, true}) {
    if (on_nvme) spill();
    for (uint32_t zero = 0; zero < kMicroBatches; ++zero) {
      const auto gradients = store();
      step(*gradients, zero);
      expect_opened(*gradients, static_cast<float>(6 - (zero + 1)));
    }
  }
}

TEST_F(AccumulatedInHostTest, StayInTheirLandingSlotWhileMicroBatchesAreOpenTogether) {
  spill();
  for (const bool layer_major : {false, true}) {
    const auto gradients = store(layer_major);
    for (uint32_t m = 0; m < kMicroBatches; ++m) {
      rig.make_gradient(kChunk, 1);
      gradients->land(rig.landing(kChunk, m, kMicroBatches));
      const bool is_last = m + 1 == kMicroBatches;
      if (!layer_major || is_last) gradients->finish_micro_batch(is_last);
    }
    EXPECT_EQ(gradients->landing_write_bytes(),
              (layer_major ? 1 : kMicroBatches) * rig.plan.accumulator_slot_bytes);
  }
}

TEST_F(AccumulatedInHostTest, LeaveTheirLandingSlotForAnotherThatNeedsItAndComeBackToBeAddedTo) {
  spill();
  for (const std::optional<uint32_t> zero : {std::optional<uint32_t>(), std::optional(1u)}) {
    const auto gradients = store(true);
    step(*gradients, zero, true);
    expect_opened(*gradients, zero ? 4.0f : 6.0f);
  }
}

TEST_F(AccumulatedInHostTest, AreAddedByAPollOnceTheirCopyIsOver) {
  const auto gradients = store();
  for (uint32_t m = 0; m < kMicroBatches; ++m) {
    rig.make_gradient(kChunk, 1);
    gradients->land(rig.landing(kChunk, m, kMicroBatches));
  }
  EXPECT_FALSE(gradients->is_complete(kChunk));
  while (!gradients->is_complete(kChunk)) gradients->poll();
  EXPECT_TRUE(all_are(gradients->gradient(kChunk), 3.0f));
  EXPECT_EQ(gradients->spare_slot(kChunk), landing[0]);
}

// Where the last micro-batch has no gradient, the open group joins the sum all the same, read back or not.
TEST_F(AccumulatedInHostTest, AreTheSumOfTheirGroups) {
  rig.accumulating.micro_batches = kMicroBatches;
  rig.accumulating.gradient_group = 2;
  rig.plan.accumulator_slot_bytes *= 2;
  for (std::byte*& slot : rig.slots) slot = rig.take(rig.plan.accumulator_slot_bytes);
  for (const bool on_nvme : {false, true}) {
    if (on_nvme) spill();
    for (const std::optional<uint32_t> zero : {std::optional<uint32_t>(), std::optional(kMicroBatches - 1)}) {
      const auto gradients = store(false, 2);
      uint32_t open_group = 0;
      for (uint32_t m = 0; m < kMicroBatches; ++m) {
        for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
          const GradientLanding part = rig.landing(ChunkId{c}, m, kMicroBatches);
          rig.whole.open_group = open_group;
          if (m == zero) {
            gradients->land_zero(part);
          } else {
            rig.make_gradient(ChunkId{c}, static_cast<float>(m + 1));
            gradients->land(part);
          }
        }
        gradients->finish_micro_batch(m + 1 == kMicroBatches);
        open_group = m / 2 + 1;
      }
      expect_opened(*gradients, zero ? 3.0f : 6.0f);
    }
  }
}

}  // namespace
}  // namespace terrace::accumulated_in_host_test
