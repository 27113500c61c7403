#include <terrace/reference/step_updates.h>

#include <gtest/gtest.h>

#include <limits>

#include <terrace/base/error.h>

#include "reference/step_rig.h"
#include "support/expect_error.h"

namespace terrace::step_updates_test {
namespace {

using namespace trainer_tests;
using testing::expect_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A rig with what a step needs before its update.
struct UpdatesRig : StepRig {
  explicit UpdatesRig(const RunOptions& run)
      : StepRig(run), batches(micro_batches()), state(run_position()), steps(updates(state)) {
    steps.begin_mode(update_rules(options.config, setup));
  }

  // Forward and backward; then the update of what is said to be the loss.
  StepReport step(std::optional<double> loss = std::nullopt) {
    StepReport report;
    report.step = state.completed_steps() + 1;
    offloader.begin_step();
    state.begin_step();
    const auto result = batches.run(state.consumed_samples(), state.loss_scale(), [&] { steps.announce(); });
    report.loss = loss.value_or(result.loss);
    steps.run(report, result.samples, std::nullopt);
    return report;
  }

  MicroBatches batches;
  RunPosition state;
  StepUpdates steps;
};

RunOptions on_nvme(const ScratchFolder& nvme, const std::string& mode) {
  RunOptions run;
  run.nvme = nvme.path();
  run.update = mode;
  run.clipping = "0";
  return run;
}

TEST(StepUpdates, ApplyEachStepAndCountIt) {
  UpdatesRig rig({});
  const std::vector<std::byte> before = rig.state_bytes();
  const StepReport report = rig.step();
  EXPECT_FALSE(report.skipped);
  EXPECT_GT(report.gradient_norm, 0);
  EXPECT_GT(report.learning_rate, 0);
  EXPECT_EQ(report.loss_scale, 1);
  EXPECT_EQ(report.next_loss_scale, 1);
  EXPECT_EQ(report.update_mode, UpdateMode::after_backward);
  EXPECT_EQ(rig.state.completed_steps(), 1u);
  EXPECT_EQ(rig.state.consumed_samples(), 1u);
  EXPECT_NE(rig.state_bytes(), before);
}

TEST(StepUpdates, LeaveEverythingAsItWasWhereTheLossIsNoNumber) {
  UpdatesRig rig({});
  rig.step();
  const std::vector<std::byte> before = rig.state_bytes();
  expect_error(ErrorKind::cancelled, {"step 2 was not applied", "loss nan, gradient norm nan"},
               [&] { rig.step(kNan); });
  EXPECT_TRUE(rig.state.counts_are_of_weights());
  EXPECT_EQ(rig.state.completed_steps(), 1u);
  EXPECT_EQ(rig.state_bytes(), before);
}

TEST(StepUpdates, SayThatAStepIsAppliedInPartWhereGradientsHaveBeenAppliedAsTheyLanded) {
  for (const std::string clipping : {"0", "1"}) {
    SCOPED_TRACE("clipping " + clipping);
    const ScratchFolder nvme;
    RunOptions run = on_nvme(nvme, "during_backward");
    run.clipping = clipping;  // with it nothing is applied before the last gradient is there
    UpdatesRig rig(run);
    const bool lands = clipping == "0";
    expect_error(lands ? ErrorKind::corrupt : ErrorKind::cancelled,
                 {lands ? "step 1 was applied in part" : "step 1 was not applied"}, [&] { rig.step(kNan); });
    EXPECT_EQ(rig.state.counts_are_of_weights(), !lands);
  }
}

TEST(StepUpdates, AdviseTheCommitWhereThereIsOne) {
  const ScratchFolder nvme;
  UpdatesRig rig(on_nvme(nvme, "during_backward"));
  rig.offloader.begin_step();
  rig.batches.run(0, 1, [&] { rig.steps.announce(); });
  StepReport report;
  report.loss = kNan;
  expect_error(ErrorKind::corrupt, {"resume from the commit on nvme, step 17, or a checkpoint"},
               [&] { rig.steps.run(report, 1, 17); });
}

TEST(StepUpdates, SkipInFp16AndLowerTheLossScale) {
  RunOptions run;
  run.more = {{"fp16.enabled", "true", "a test"},
              {"fp16.initial_scale_power", "4", "a test"},
              {"fp16.hysteresis", "1", "a test"}};
  UpdatesRig rig(run);
  const std::vector<std::byte> before = rig.state_bytes();
  const StepReport report = rig.step(kNan);
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.loss_scale, 16);
  EXPECT_EQ(report.next_loss_scale, 8);
  EXPECT_EQ(rig.state.completed_steps(), 1u);
  EXPECT_EQ(rig.state.applied_updates(), 0u);
  EXPECT_EQ(rig.state_bytes(), before);
}

TEST(StepUpdates, SkipInFp16ThoughUpdatesRunDuringBackwardWithoutClipping) {
  const ScratchFolder nvme;
  RunOptions run = on_nvme(nvme, "during_backward");
  run.more = {{"fp16.enabled", "true", "a test"}, {"fp16.loss_scale", "1", "a test"}};
  UpdatesRig rig(run);
  const std::vector<std::byte> before = rig.state_bytes();
  EXPECT_TRUE(rig.step(kNan).skipped);
  EXPECT_TRUE(rig.state.counts_are_of_weights());
  EXPECT_EQ(rig.state_bytes(), before);
}

// Figures of a step whose update waits for the disk while there is something to compute.
StepReport slow_disk(uint64_t step) {
  StepReport report;
  report.step = step;
  report.forward_ns = 1'000'000'000;
  report.forward_backward_ns = 2'000'000'000;
  report.update_ns = 1'000'000'000;
  report.moved.update_wait_ns = 900'000'000;
  return report;
}

TEST(StepUpdates, ChooseTheFastestModeAfterTheFirstStepsUnlessOneIsAskedFor) {
  for (const bool asked : {false, true}) {
    SCOPED_TRACE(asked);
    const ScratchFolder nvme;
    RunOptions run = on_nvme(nvme, "after_backward");
    run.clipping = "1";
    UpdatesRig rig(run);
    TrainConfig config = rig.options.config;
    if (!asked) config.terrace.update.reset();
    StepUpdates updates(rig.offloader, rig.state, rig.between, config, 100, rig.ranks, rig.log);
    updates.begin_mode({});
    for (uint64_t step = 1; step <= UpdateChoice::kMeasuredSteps; ++step)
      updates.choose_mode(slow_disk(step));
    EXPECT_EQ(rig.offloader.update_mode(), UpdateMode::after_backward);
    StepReport skipped = slow_disk(4);
    skipped.skipped = true;
    updates.choose_mode(skipped);  // in which nothing was updated
    EXPECT_EQ(rig.offloader.update_mode(), UpdateMode::after_backward);
    updates.choose_mode(slow_disk(5));
    EXPECT_EQ(rig.offloader.update_mode() != UpdateMode::after_backward, !asked);
    EXPECT_EQ(rig.log.lines().empty(), asked);
  }
}

}  // namespace
}  // namespace terrace::step_updates_test
