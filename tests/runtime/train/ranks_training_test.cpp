// Trainers of several ranks, as threads: the steps, evaluations and checkpoints of one, and one of their
// checkpoints goes on with any number of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include <terrace/base/error.h>
#include <terrace/comm/thread_world.h>

#include "runtime/train/trainer_rig.h"
#include "support/rank_threads.h"

namespace terrace::trainer_tests {
namespace {

constexpr uint64_t kSteps = 3;

RunOptions four_micro_batches(const fs::path& nvme, uint32_t ranks) {
  RunOptions run;
  run.nvme = nvme;
  run.parameters = "nvme";
  run.durable = "false";
  run.precision = "true";
  run.validation_fraction = 0.3;
  // The numbers of a step stay the same: 4 micro-batches over all ranks.
  run.accumulation = "auto";
  run.more = {{"train_batch_size", "8", "a test"}, {"train_micro_batch_size_per_gpu", "2", "a test"}};
  if (ranks > 1) run.more.push_back({"terrace.ranks", std::to_string(ranks), "a test"});
  return run;
}

struct Outcome {
  std::vector<double> losses;
  double evaluation = 0;
  bool operator==(const Outcome&) const = default;
};

// Trains to `steps`, from a checkpoint where `resume` names one, and saves in `saves`.
Outcome train(const fs::path& nvme, const fs::path& saves, uint64_t steps, const fs::path& resume,
              uint32_t ranks, Communicator* communicator) {
  RunOptions options = four_micro_batches(nvme, ranks);
  options.communicator = communicator;
  TrainerRun run(options);
  if (!resume.empty()) run.trainer->resume(resume);
  Outcome outcome;
  outcome.losses = run.train(steps - run.trainer->completed_steps());
  outcome.evaluation = run.trainer->evaluate(7);
  if (communicator == nullptr || communicator->rank() == 0) {
    run.trainer->begin_save(run.saves_in(saves));
  } else {
    run.trainer->follow_save();
  }
  return outcome;
}

std::vector<Outcome> train_on(uint32_t ranks, const fs::path& folder, uint64_t steps,
                              const fs::path& resume = {}) {
  const fs::path nvme = folder / "nvme", saves = folder / "saves";
  fs::create_directories(nvme);
  if (ranks == 1) return {train(nvme, saves, steps, resume, 1, nullptr)};
  ThreadWorld world({.ranks = ranks});
  std::vector<Outcome> outcomes(ranks);
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         outcomes[rank.rank()] = train(nvme, saves, steps, resume, ranks, &rank);
       }))
    EXPECT_EQ(failure, "");
  return outcomes;
}

std::string saved_states(const fs::path& folder) {
  return bytes_of_file(folder / "saves" / fmt::format("step-{:08}", kSteps) / "states.bin");
}

TEST(RanksTraining, HasTheLossesAndCheckpointsOfOneRank) {
  const ScratchFolder alone;
  const Outcome expected = train_on(1, alone.path(), kSteps).front();
  ASSERT_EQ(expected.losses.size(), kSteps);
  ASSERT_FALSE(saved_states(alone.path()).empty());
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const ScratchFolder folder;
    for (const Outcome& outcome : train_on(ranks, folder.path(), kSteps))
      EXPECT_EQ(outcome, expected) << ranks;
    EXPECT_TRUE(saved_states(folder.path()) == saved_states(alone.path())) << ranks;
  }
}

TEST(RanksTraining, GoesOnWithAnotherNumberOfRanks) {
  const ScratchFolder alone;
  const Outcome expected = train_on(1, alone.path(), kSteps).front();
  for (const uint32_t before : {1u, 2u, 3u, 4u, 8u}) {
    const ScratchFolder first;
    train_on(before, first.path(), 1);
    for (const uint32_t after : {1u, 2u, 3u, 4u, 8u}) {
      SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
      const ScratchFolder second;
      for (const Outcome& outcome : train_on(after, second.path(), kSteps, first.path() / "saves")) {
        EXPECT_EQ(outcome.losses, std::vector(expected.losses.begin() + 1, expected.losses.end()));
        EXPECT_EQ(outcome.evaluation, expected.evaluation);
      }
      EXPECT_TRUE(saved_states(second.path()) == saved_states(alone.path()));
    }
  }
}

TEST(RanksTraining, EndsOnAllRanksWhereTheyDiffer) {
  const ScratchFolder folder;
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         RunOptions options = four_micro_batches(folder.path(), 3);
         options.communicator = &rank;
         if (rank.rank() == 1) options.seed = "43";
         const TrainerRun run(options);
       }))
    EXPECT_NE(failure.find("terrace.seed: 42 on ranks 0 and 2, 43 on rank 1"), std::string::npos) << failure;
  ThreadWorld others({.ranks = 2});
  for (const std::string& failure : testing::on_every_rank(others, [&](Communicator& rank) {
         RunOptions options = four_micro_batches(folder.path(), 2);
         options.communicator = &rank;
         options.data = 1 + rank.rank();
         const TrainerRun run(options);
       }))
    EXPECT_NE(failure.find("of the data: data_fingerprint: 1 on rank 0, 2 on rank 1"), std::string::npos)
        << failure;
}

TEST(RanksTraining, PlansWithTheLeastBudgetsAndEndsWhereOneRankHasTooLittle) {
  const ScratchFolder folder;
  ThreadWorld world({.ranks = 2});
  std::vector<uint64_t> budgets(2);
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         RunOptions options = four_micro_batches(folder.path(), 2);
         options.communicator = &rank;
         options.host_memory = rank.rank() == 1 ? "32MiB" : "64MiB";
         const TrainerRun run(options);
         budgets[rank.rank()] = run.trainer->plan().host.bytes;
       }))
    EXPECT_EQ(failure, "");
  EXPECT_EQ(budgets, std::vector<uint64_t>(2, 32 << 20));
  ThreadWorld small({.ranks = 2});
  const std::vector<std::string> failures = testing::on_every_rank(small, [&](Communicator& rank) {
    RunOptions options = four_micro_batches(folder.path(), 2);
    options.communicator = &rank;
    if (rank.rank() == 1) options.host_memory = "4KiB";
    const TrainerRun run(options);
  });
  EXPECT_NE(failures[1].find("does not fit"), std::string::npos) << failures[1];
  EXPECT_NE(failures[0].find("one of them cannot plan"), std::string::npos) << failures[0];
}

}  // namespace
}  // namespace terrace::trainer_tests
