// The gradients of a step alone: opened, landed when the last use has added to them, and zeros for what no
// use met.
#include <terrace/offload/step/gradient_landings.h>

#include <gtest/gtest.h>

#include "offload/step/step_rig.h"
#include "support/expect_error.h"

namespace terrace::gradient_landings_test {
namespace {

struct GradientLandingsTest : ::testing::Test {
  explicit GradientLandingsTest(OffloadOptions options = {}) : rig(2 * StepRig::kChunks, std::move(options)) {
    landings.begin_step();
  }
  CacheSlot& slot() {
    const Schedule unknown;
    return *rig.cache.take_slot(EvictionContext{unknown, kNever});
  }
  // A backward use of one tensor, whose operation adds `value` to every element.
  void use(uint32_t tensor, float value) {
    const OpenUse open = rig.use("backward", UseKind::backward, {tensor});
    landings.open(open, [this]() -> CacheSlot& { return slot(); });
    rig.states.change(TensorId{tensor}, TensorState::compute);
    auto* const elements = reinterpret_cast<Bf16*>(rig.cache.gradient_address(ChunkId{tensor}));
    for (uint64_t e = 0; e < kTileElements; ++e) elements[e] = to_bf16(value);
    rig.states.change(TensorId{tensor}, TensorState::hold_after_backward);
    landings.close(open, 0);
  }
  float landed(uint32_t chunk) {
    return to_float(*reinterpret_cast<const Bf16*>(rig.gradients->gradient(ChunkId{chunk})));
  }
  StepRig rig;
  UpdateRunner runner = rig.make_runner();
  EarlyUpdate early_update{rig.run, rig.homes, rig.cache, rig.states, runner};
  GradientLandings landings{rig.run, rig.runs, *rig.gradients, rig.cache, rig.states, early_update};
};

TEST_F(GradientLandingsTest, SendOffWhatTheLastUseHasAddedTo) {
  const OpenUse open = rig.use("backward", UseKind::backward, {1});
  EXPECT_EQ(landings.slots_with(open), 1u);
  EXPECT_FALSE(landings.has_gradient(TensorId{1}));
  use(1, 0.25f);
  EXPECT_TRUE(landings.has_gradient(TensorId{1}));
  EXPECT_FALSE(rig.cache.has_gradient(ChunkId{1}));
  EXPECT_EQ(rig.states.state(TensorId{1}), TensorState::reducing);
  rig.gradients->finish_micro_batch(true);
  EXPECT_EQ(landed(1), 0.25f);
}

TEST_F(GradientLandingsTest, LandZerosForWhatNoUseHasMet) {
  use(0, 0.5f);
  landings.complete_unused(0);
  rig.gradients->finish_micro_batch(true);
  EXPECT_EQ(landed(0), 0.5f);
  EXPECT_EQ(landed(1), 0.0f);
  EXPECT_EQ(landed(2), 0.0f);
  EXPECT_EQ(rig.gradients->norm().norm(1), std::sqrt(kTileElements * 0.25));
}

TEST_F(GradientLandingsTest, DropWhatIsStillOnTheDevice) {
  const OpenUse open = rig.use("backward", UseKind::backward, {2});
  landings.open(open, [this]() -> CacheSlot& { return slot(); });
  rig.cache.unpin_gradient(ChunkId{2});
  landings.drop();
  EXPECT_FALSE(rig.cache.has_gradient(ChunkId{2}));
  EXPECT_EQ(rig.cache.gradient_slot_count(), 0u);
}

}  // namespace
}  // namespace terrace::gradient_landings_test
