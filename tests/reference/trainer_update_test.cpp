// Steps of a Trainer that end badly, whenever its updates run: what is left of the state, what is kept of it,
// and that the last commit and checkpoint lead on.
#include <gtest/gtest.h>

#include <terrace/base/error.h>

#include "reference/poisoned_model.h"
#include "reference/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace::trainer_update_test {
namespace {

using namespace trainer_tests;
using testing::expect_error;

// Complete when the whole backward pass is over, and when it has just begun.
constexpr const char* kLastTensor = "wpe";
constexpr const char* kFirstTensor = "ln_f";

RunOptions on_nvme(const ScratchFolder& nvme, const std::string& update, bool compact) {
  RunOptions options;
  options.nvme = nvme.path();
  options.parameters = "cpu";
  options.precision = "true";
  options.update = update;
  options.compact = compact ? "true" : "false";
  options.clipping = "0";  // or nothing is applied before the last gradient
  return options;
}

// Of a run that nothing happens to.
std::vector<std::vector<std::byte>> whole_run(uint64_t steps) {
  RunOptions options;
  options.precision = "true";
  options.clipping = "0";
  return states_of_calm_run(options, steps);
}

TEST(TrainerUpdate, AppliedInPartEndsTheRunAndTheLastCommitAndCheckpointLeadOn) {
  const auto expected = whole_run(5);
  for (const bool compact : {false, true}) {
    for (const bool loss : {false, true}) {
      SCOPED_TRACE(std::string(compact ? "compact" : "plain") + (loss ? ", loss" : ", gradient"));
      const ScratchFolder nvme, saved;
      RunOptions options = on_nvme(nvme, "during_backward", compact);
      options.model = poisoned({.micro_batch = 4, .tensor = kLastTensor, .loss = loss});
      options.commit_every_steps = "1";
      {
        TrainerRun run(options);
        run.train(2);
        run.trainer->begin_save(run.saves_in(saved.path()));
        run.trainer->finish_save();
        run.train(1);
        run.trainer->look_after_state();
        run.trainer->finish_commit();
        const uint64_t commits = run.trainer->offloader().report().counters().commit_count;
        expect_error(
            ErrorKind::corrupt,
            {"step 4 was applied in part", "during_backward", "the commit on nvme, step 3", "terrace.update"},
            [&] { run.trainer->step(); });
        EXPECT_EQ(run.trainer->completed_steps(), 3u);
        // What a program may still try: nothing of these weights is committed, saved or exported.
        if (!loss) {
          EXPECT_THROW(run.trainer->offloader().commits().begin("no step's"), Error);
          EXPECT_THROW(run.state(), Error);
        }
        run.trainer->finish_commit();
        run.trainer->finish_save();
        EXPECT_EQ(run.trainer->offloader().report().counters().commit_count, commits);
        EXPECT_EQ(run.trainer->durable_step(), 3u);
      }
      options.model = nullptr;
      options.start = TierStart::resume;
      {
        TrainerRun run(options);
        EXPECT_EQ(run.trainer->completed_steps(), 3u);
        EXPECT_TRUE(run.state() == expected[3]);
        run.train(2);
        EXPECT_TRUE(run.state() == expected[5]);
        run.trainer->offloader().commits().keep_tier(false);
      }
      options.start = TierStart::fresh;
      options.discard = true;
      TrainerRun run(options);
      run.trainer->resume(saved.path());
      EXPECT_EQ(run.trainer->completed_steps(), 2u);
      run.train(3);
      EXPECT_TRUE(run.state() == expected[5]);
    }
  }
}

// Where no chunk was updated before it was found, the step has changed nothing and the run may go on.
TEST(TrainerUpdate, ThatIsNotAppliedLeavesTheStateOfTheStepBefore) {
  const auto expected = whole_run(4);
  struct Ending {
    const char* update;
    Poison poison;
  };
  const Ending endings[] = {
      {"during_backward", {.micro_batch = 3, .tensor = kFirstTensor}},
      {"next_forward", {.micro_batch = 3, .tensor = kLastTensor}},
      {"next_forward", {.micro_batch = 3, .tensor = "", .loss = true}},
      {"after_backward", {.micro_batch = 3, .tensor = kFirstTensor}},
      {"after_backward", {.micro_batch = 3, .tensor = "", .loss = true}},
  };
  for (const Ending& ending : endings) {
    for (const bool compact : {false, true}) {
      SCOPED_TRACE(std::string(ending.update) + (compact ? ", compact, " : ", plain, ") +
                   ending.poison.tensor);
      const ScratchFolder nvme;
      RunOptions options = on_nvme(nvme, ending.update, compact);
      options.model = poisoned(ending.poison);
      TrainerRun run(options);
      run.train(2);
      expect_error(ErrorKind::cancelled, {"step 3 was not applied", "not a finite number"},
                   [&] { run.trainer->step(); });
      EXPECT_TRUE(run.state() == expected[2]);
      run.trainer->begin_commit();
      EXPECT_EQ(run.trainer->finish_commit().commit_step, 2u);
      run.train(2);
      EXPECT_TRUE(run.state() == expected[4]);
    }
  }
}

}  // namespace
}  // namespace terrace::trainer_update_test
