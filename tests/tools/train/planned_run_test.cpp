// What is settled, checked and refused before there is a trainer, and the trainer that is made of it.
#include "train/planned_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

#include "support/expect_error.h"
#include "tools/train/train_rig.h"

namespace terrace::planned_run_test {
namespace {

using ::testing::HasSubstr;
using train_tests::TrainRig;

size_t files_in(const std::filesystem::path& folder) {
  const std::filesystem::recursive_directory_iterator begin(folder);
  return static_cast<size_t>(std::distance(begin, std::filesystem::recursive_directory_iterator()));
}

TEST(PlannedRun, SettlesWhatTheFlagsSayAndMakesNothing) {
  TrainRig rig({"--offload-optimizer", "nvme", "--nvme-path", "NVME", "--seed", "7"});
  const PlannedRun& run = rig.plan();
  EXPECT_EQ(run.options().steps, 3u);
  EXPECT_EQ(run.options().model.layers, 1u);
  EXPECT_EQ(run.options().model.vocabulary, 256u);  // bytes of the text
  EXPECT_EQ(run.options().config.terrace.seed, 7u);
  EXPECT_EQ(run.options().config.placement.states, Placement::nvme);
  EXPECT_EQ(run.options().compute, nullptr);  // the simulated device
  EXPECT_EQ(run.options().communicator, nullptr);
  EXPECT_EQ(run.options().tier_start, TierStart::fresh);
  EXPECT_FALSE(run.start().is_resumed());
  EXPECT_EQ(run.save_folder(), nullptr);
  EXPECT_EQ(run.plan().device.bytes, 16 * kMiB);
  EXPECT_GT(run.plan().memory.record_file_bytes, 0u);
  EXPECT_GT(run.data().train_token_count(), 0u);
  EXPECT_EQ(files_in(rig.path_of("nvme")), 0u);
}

TEST(PlannedRun, PredictsTheRunOnce) {
  TrainRig rig;
  PlannedRun& run = rig.plan();
  const std::optional<PlanPrediction> prediction = run.take_prediction();
  ASSERT_TRUE(prediction);
  EXPECT_FALSE(prediction->tiers.empty());
}

TEST(PlannedRun, TakesTheStepsOfThePassesThatAreAskedFor) {
  TrainRig rig({"--epochs", "2"});
  const PlannedRun& run = rig.plan();
  const uint64_t samples = run.data().sample_count();
  const uint64_t batch = run.options().config.batch.train_batch_size();
  EXPECT_EQ(run.options().steps, (2 * samples + batch - 1) / batch);
  EXPECT_EQ(rig.flags().steps, run.options().steps);
}

TEST(PlannedRun, RefusesABudgetThatIsTooSmallWithWaysThatFit) {
  TrainRig rig({"--host-memory", "64KiB", "--offload-optimizer", "cpu"});
  try {
    rig.plan();
    FAIL() << "64 KiB do";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_THAT(error.in(Door::program), HasSubstr("--host-memory "));
    EXPECT_THAT(error.in(Door::program), HasSubstr("MiB"));
  }
}

TEST(PlannedRun, RefusesAFolderForNvmeThatIsNotThere) {
  TrainRig rig({"--offload-optimizer", "nvme", "--nvme-path", "/not/there"});
  testing::expect_error(ErrorKind::config, {"/not/there"}, [&] { rig.plan(); });
}

TEST(PlannedRun, RefusesACheckpointThatIsNotThereBeforeItPlans) {
  TrainRig rig({"--resume", "no/such/checkpoint"});
  testing::expect_error(ErrorKind::config, {"no/such/checkpoint"}, [&] { rig.plan(); });
}

TEST(PlannedRun, MakesATrainerAtTheBeginning) {
  TrainRig rig;
  PlannedRun& run = rig.plan();
  const std::unique_ptr<Trainer> trainer = run.make_trainer();
  EXPECT_EQ(trainer->completed_steps(), 0u);
  EXPECT_EQ(trainer->plan().device.bytes, run.plan().device.bytes);
  const StepReport step = trainer->step();
  EXPECT_EQ(step.step, 1u);
  EXPECT_NEAR(step.loss, std::log(256), 0.5);  // of a model that knows nothing
}

TEST(PlannedRun, GoesOnFromACheckpointThatIsNamed) {
  TrainRig rig({"--save", "saves"});
  rig.flags().save = rig.path_of("saves");
  PlannedRun& first = rig.plan();
  ASSERT_NE(first.save_folder(), nullptr);
  std::filesystem::path saved;
  {
    const std::unique_ptr<Trainer> trainer = first.make_trainer();
    trainer->step();
    trainer->step();
    saved = trainer->save(*first.save_folder());
  }
  rig.flags().save.clear();
  rig.flags().resume = saved;
  PlannedRun& second = rig.plan();
  EXPECT_TRUE(second.start().is_resumed());
  const std::unique_ptr<Trainer> trainer = second.make_trainer();
  EXPECT_EQ(trainer->completed_steps(), 2u);
}

}  // namespace
}  // namespace terrace::planned_run_test
