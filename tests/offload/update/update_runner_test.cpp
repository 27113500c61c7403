// An update alone: on the calling thread, beside it, in the order of a schedule, and what the step thread may
// ask of a chunk meanwhile.
#include <terrace/offload/update/update_runner.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "offload/step/step_rig.h"
#include "support/expect_error.h"

namespace terrace::update_runner_test {
namespace {

using ::testing::ElementsAre;

struct UpdateRunnerTest : ::testing::Test {
  StepRig rig;
  UpdateRunner runner = rig.make_runner();
  std::vector<uint32_t> updated() const {
    std::vector<uint32_t> chunks;
    for (const ChunkTimes& times : runner.last_times()) chunks.push_back(index_of(times.chunk));
    return chunks;
  }
};

TEST_F(UpdateRunnerTest, TakesGradientsScaledAndClippedFromTheMasters) {
  rig.land_all(8.0f);
  // A norm of 4 and a clipping norm of 2 halve what the loss scale has quartered.
  runner.set_constants({.groups = rig.groups, .clip_norm = 2, .loss_scale = 4}, 4 - 1e-6);
  runner.run({});
  EXPECT_FALSE(runner.is_running());
  for (uint32_t c = 0; c < StepRig::kChunks; ++c) EXPECT_EQ(rig.master(c), StepRig::kMaster - 1.0f) << c;
}

TEST_F(UpdateRunnerTest, GoesThroughTheChunksAsTheNextStepNeedsThem) {
  runner.set_mode(UpdateMode::next_forward);
  rig.land_all(0.5f);
  runner.set_constants(rig.settings, 0);
  const TensorUse uses[] = {{"last", UseKind::forward, {TensorId{2}}},
                            {"first", UseKind::forward, {TensorId{0}}}};
  runner.run(schedule_of(rig.space, uses, LeasedGradients::leave));
  EXPECT_TRUE(runner.is_running());
  for (uint32_t c = 0; c < StepRig::kChunks; ++c) EXPECT_TRUE(runner.is_unsettled(ChunkId{c}));
  runner.wait_updated(ChunkId{2});
  EXPECT_EQ(rig.master(2), 0.5f);
  runner.settle(ChunkId{2});
  EXPECT_FALSE(runner.is_unsettled(ChunkId{2}));
  EXPECT_EQ(rig.states.state(TensorId{2}), TensorState::hold);
  EXPECT_EQ(rig.states.state(TensorId{1}), TensorState::updating);
  runner.wait();
  EXPECT_FALSE(runner.is_running());
  EXPECT_EQ(rig.states.state(TensorId{1}), TensorState::hold);
  EXPECT_THAT(updated(), ElementsAre(2, 0, 1));
}

TEST_F(UpdateRunnerTest, ChangesNothingThatItIsNotAllowedTo) {
  runner.set_mode(UpdateMode::during_backward);
  rig.land_all(0.5f);
  runner.begin_beside(false);
  EXPECT_TRUE(runner.is_running());
  runner.wait();
  for (uint32_t c = 0; c < StepRig::kChunks; ++c) EXPECT_EQ(rig.master(c), StepRig::kMaster) << c;
}

TEST_F(UpdateRunnerTest, UpdatesWhatItIsGivenBesideTheStep) {
  runner.set_mode(UpdateMode::during_backward);
  rig.land_all(0.5f);
  runner.set_constants(rig.settings, 0);
  runner.begin_beside(true);
  runner.give(ChunkId{1});
  runner.wait();
  EXPECT_EQ(rig.master(1), 0.5f);
  EXPECT_EQ(rig.master(0), StepRig::kMaster);
}

TEST_F(UpdateRunnerTest, RefusesSettingsWithWhichItCannotUpdate) {
  for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity()})
    testing::expect_error(ErrorKind::misuse, {"loss scale"},
                          [&] { runner.require({.groups = rig.groups, .loss_scale = scale}); });
  for (const double norm : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    testing::expect_error(ErrorKind::misuse, {"clip_norm"},
                          [&] { runner.require({.groups = rig.groups, .clip_norm = norm}); });
  testing::expect_error(ErrorKind::misuse, {"step 0"},
                        [&] { runner.require({.groups = rig.groups, .step = 0}); });
  std::vector<OptimizerSettings> groups(rig.groups.begin(), rig.groups.end());
  groups.back().beta1 = std::numeric_limits<double>::quiet_NaN();
  testing::expect_error(ErrorKind::misuse, {"parameter group", "betas"},
                        [&] { runner.require({.groups = groups}); });
  groups.back() = {.kind = OptimizerKind::lion};
  testing::expect_error(ErrorKind::misuse, {"1 moments", "records have 0"},
                        [&] { runner.require({.groups = groups}); });
  testing::expect_error(ErrorKind::misuse, {"parameter group"}, [&] { runner.require({}); });
  runner.require(rig.settings);
}

}  // namespace
}  // namespace terrace::update_runner_test
