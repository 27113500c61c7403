// The update of a step that goes backward: announced or not, as gradients land, and with one that is not
// finite.
#include <terrace/offload/update/early_update.h>

#include <gtest/gtest.h>

#include <limits>

#include "offload/step/step_rig.h"
#include "support/expect_error.h"

namespace terrace::early_update_test {
namespace {

struct EarlyUpdateTest : ::testing::Test {
  EarlyUpdateTest() {
    runner.set_mode(UpdateMode::during_backward);
    rig.runs.begin_step();
    update.begin_step();
  }
  void land(uint32_t chunk, float value) {
    rig.states.change(TensorId{chunk}, TensorState::compute);
    rig.states.change(TensorId{chunk}, TensorState::hold_after_backward);
    rig.states.change(TensorId{chunk}, TensorState::grad_ready);
    rig.states.change(TensorId{chunk}, TensorState::reducing);
    rig.land_gradient(chunk, value);
    update.note_landing(ChunkId{chunk});
  }
  StepRig rig;
  UpdateRunner runner = rig.make_runner();
  EarlyUpdate update{rig.run, rig.homes, rig.cache, rig.states, runner};
};

TEST_F(EarlyUpdateTest, BeginsOnlyWhatWasAnnounced) {
  update.begin();
  EXPECT_FALSE(runner.is_running());
  // What landed meanwhile would never be updated.
  testing::expect_error(ErrorKind::misuse, {"backward already"}, [&] { update.announce(rig.settings); });
  update.begin_step();
  update.announce(rig.settings);
  update.begin();
  EXPECT_TRUE(update.takes_landings());
  testing::expect_error(ErrorKind::misuse, {"backward already"}, [&] { update.announce(rig.settings); });
  testing::expect_error(ErrorKind::misuse, {"as it was announced"},
                        [&] { update.require_announced({.groups = rig.groups, .clip_norm = 1}); });
  update.require_announced(rig.settings);
  runner.wait();
}

TEST_F(EarlyUpdateTest, ReadsAheadAloneWhereTheNormDecides) {
  update.announce({.groups = rig.groups, .clip_norm = 1});
  update.begin();
  EXPECT_TRUE(runner.is_running());
  EXPECT_FALSE(update.takes_landings());
  runner.wait();
}

TEST_F(EarlyUpdateTest, UpdatesWhatHasLanded) {
  update.announce(rig.settings);
  update.begin();
  for (uint32_t c = 0; c < StepRig::kChunks; ++c) land(c, 0.5f);
  rig.gradients->finish_micro_batch(true);
  EXPECT_EQ(rig.states.state(TensorId{0}), TensorState::updating);
  EXPECT_TRUE(update.end());
  EXPECT_FALSE(update.is_partly_applied());
  for (uint32_t c = 0; c < StepRig::kChunks; ++c) EXPECT_EQ(rig.master(c), 0.5f) << c;
}

TEST_F(EarlyUpdateTest, StopsAtTheFirstGradientThatIsNotFinite) {
  update.announce(rig.settings);
  update.begin();
  land(2, 0.5f);
  land(1, std::numeric_limits<float>::infinity());
  land(0, 0.5f);
  rig.gradients->finish_micro_batch(true);
  EXPECT_FALSE(update.end());
  EXPECT_TRUE(update.is_partly_applied());
  EXPECT_EQ(rig.master(2), 0.5f);
  EXPECT_EQ(rig.master(1), StepRig::kMaster);
  EXPECT_EQ(rig.master(0), StepRig::kMaster);
  update.begin_step();
  EXPECT_FALSE(update.is_partly_applied());
}

}  // namespace
}  // namespace terrace::early_update_test
