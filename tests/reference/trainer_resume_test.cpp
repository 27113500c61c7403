// What a run may go on from: a state of other moments is refused and left alone; compact and plain state lead
// on to each other through a checkpoint, and not in place.
#include <gtest/gtest.h>

#include <terrace/base/error.h>

#include "reference/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace::trainer_resume_test {
namespace {

using namespace trainer_tests;
using testing::expect_error;

RunOptions in_bf16(const char* optimizer = "AdamW") {
  RunOptions options;
  options.precision = "true";
  options.parameters = "cpu";
  options.optimizer = optimizer;
  return options;
}

// The other run's state, its refusal, and the state after that.
void expect_refused(const RunOptions& options, const fs::path& folder,
                    const std::vector<std::string>& fragments) {
  TrainerRun run(options);
  const std::vector<std::byte> before = run.state();
  expect_error(ErrorKind::config, fragments, [&] { run.trainer->resume(folder); });
  EXPECT_TRUE(run.state() == before);
  EXPECT_EQ(run.trainer->completed_steps(), 0u);
}

TEST(TrainerResume, RefusesACheckpointOfAnotherOptimizer) {
  const ScratchFolder saved;
  TrainerRun first(in_bf16());
  first.train(2);
  first.trainer->save(first.saves_in(saved.path()));
  for (const char* other : {"Adagrad", "Lion", "SGD"}) {
    SCOPED_TRACE(other);
    expect_refused(in_bf16(other), saved.path(),
                   {"optimizer differs", saved.path().string(), "saved with optimizer.type \"AdamW\"",
                    std::string("now \"") + other + "\""});
  }
  TrainerRun adam(in_bf16("Adam"));  // these two have the same moments
  adam.trainer->resume(saved.path());
  EXPECT_TRUE(adam.state() == first.state());
}

// Widened moments say what they were: back in bf16 they are the same again.
TEST(TrainerResume, GoesOnFromACheckpointOfMomentsInAnotherPrecision) {
  for (const bool from_bf16 : {false, true}) {
    const ScratchFolder saved;
    RunOptions options = in_bf16();
    options.bf16_moments = from_bf16 ? "true" : "false";
    TrainerRun first(options);
    first.train(1);
    first.trainer->save(first.saves_in(saved.path()));
    const std::vector<std::byte> state = first.state();
    options.bf16_moments = from_bf16 ? "false" : "true";
    TrainerRun second(options);
    second.trainer->resume(saved.path());
    EXPECT_EQ(second.trainer->completed_steps(), 1u);
    EXPECT_FALSE(second.state() == state);
    const ScratchFolder back;
    second.trainer->save(second.saves_in(back.path()));
    options.bf16_moments = from_bf16 ? "true" : "false";
    TrainerRun third(options);
    third.trainer->resume(back.path());
    EXPECT_EQ(third.state() == state, from_bf16);
  }
}

TEST(TrainerResume, GoesOnFromPlainStateWithCompactStateAndTheOtherWayRoundBitForBit) {
  TrainerRun whole(in_bf16());
  const std::vector<double> losses = whole.train(5);
  const std::vector<std::byte> expected = whole.state();
  for (const char* update : {"after_backward", "next_forward", "during_backward"}) {
    for (const bool from_compact : {false, true}) {
      for (const bool on_nvme : {false, true}) {
        SCOPED_TRACE(std::string(update) + (from_compact ? ", from compact" : ", from plain") +
                     (on_nvme ? ", on nvme" : ", on cpu"));
        const ScratchFolder nvme, saved;
        RunOptions options = in_bf16();
        options.update = update;
        options.compact = from_compact ? "true" : "false";
        if (on_nvme) options.nvme = nvme.path();
        fs::path checkpoint;
        {
          TrainerRun first(options);
          first.train(2);
          checkpoint = first.trainer->save(first.saves_in(saved.path()));
          first.trainer->offloader().commits().keep_tier(false);
        }
        options.compact = from_compact ? "false" : "true";
        TrainerRun second(options);
        second.trainer->resume(checkpoint);
        EXPECT_EQ(second.train(3), std::vector<double>(losses.begin() + 2, losses.end()));
        EXPECT_TRUE(second.state() == expected);
      }
    }
  }
}

// In place records are as they lie there: nothing but the same layout will do, and what is refused stays.
TEST(TrainerResume, RefusesACommitOfAnotherLayoutAndLeavesIt) {
  for (const bool compact : {false, true}) {
    const ScratchFolder nvme;
    RunOptions options = in_bf16();
    options.nvme = nvme.path();
    options.compact = compact ? "true" : "false";
    std::vector<std::byte> committed;
    {
      TrainerRun run(options);
      run.train(2);
      run.trainer->begin_commit();
      committed = run.state();
    }
    options.start = TierStart::resume;
    const auto refused = [&](const RunOptions& other, const std::vector<std::string>& fragments) {
      expect_error(ErrorKind::config, fragments, [&] { TrainerRun run(other); });
    };
    RunOptions other = options;
    other.compact = compact ? "false" : "true";
    refused(other, {"compact masters", "whole masters", "OffloadOptions::record_layout", "checkpoint"});
    other = options;
    other.bf16_moments = "true";
    refused(other, {"2 moments in fp32", "2 moments in bf16"});
    other = options;
    other.optimizer = "Lion";
    refused(other, {"optimizer differs", "\"AdamW\"", "\"Lion\""});
    TrainerRun run(options);
    EXPECT_EQ(run.trainer->completed_steps(), 2u);
    EXPECT_TRUE(run.state() == committed);
  }
}

}  // namespace
}  // namespace terrace::trainer_resume_test
