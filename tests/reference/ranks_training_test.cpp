// Trainers of several ranks, as threads: the steps, evaluations and checkpoints of one, and one of their
// checkpoints goes on with any number of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/config/tier_paths.h>

#include "comm/comm_faults.h"
#include "comm/thread_world.h"
#include "reference/trainer_rig.h"
#include "support/patience.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"

namespace terrace::trainer_tests {
namespace {

constexpr uint64_t kSteps = 3;

// What a training is made of, beside the number of its ranks.
struct Way {
  std::string compact = "false";
  bool has_frozen_part = false;
  bool has_two_paths = false;
  uint32_t group = 1;  // micro-batches of a gradient group
};

const std::vector<Way>& ways() {
  static const std::vector<Way> list = {{},
                                        {.compact = "true"},
                                        {.has_frozen_part = true, .group = 3},
                                        {.compact = "true", .has_two_paths = true}};
  return list;
}

RunOptions four_micro_batches(const fs::path& nvme, uint32_t ranks) {
  RunOptions run;
  run.nvme = nvme;
  run.parameters = "nvme";
  run.durable = "false";
  run.precision = "true";
  run.chunk_elements = "32768";  // so that each rank has tiles of some chunk
  run.validation_fraction = 0.3;
  // The numbers of a step stay the same: 4 micro-batches over all ranks.
  run.accumulation = "auto";
  run.more = {{"train_batch_size", "8", "a test"}, {"train_micro_batch_size_per_gpu", "2", "a test"}};
  if (ranks > 1) run.more.push_back({"terrace.ranks", std::to_string(ranks), "a test"});
  return run;
}

RunOptions run_of(const Way& way, const fs::path& folder, uint32_t ranks) {
  for (const char* path : {"nvme", "second"}) fs::create_directories(folder / path);
  RunOptions run = four_micro_batches(folder / "nvme", ranks);
  run.compact = way.compact;
  if (way.has_frozen_part) run.more.push_back({"terrace.frozen", R"(["*h.0.attn*"])", "a test"});
  if (way.group > 1) run.more.push_back({"terrace.gradient_group", std::to_string(way.group), "a test"});
  if (way.has_two_paths) {
    const std::string paths =
        fmt::format("[\"{}\", \"{}\"]", (folder / "nvme").string(), (folder / "second").string());
    run.more.push_back({"zero_optimization.offload_optimizer.nvme_path", paths, "a test"});
  }
  return run;
}

struct Outcome {
  std::vector<double> losses;
  double evaluation = 0;
  bool operator==(const Outcome&) const = default;
};

// Trains to `steps`, from a checkpoint where `resume` names one, and saves.
Outcome train(const Way& way, const fs::path& folder, uint64_t steps, const fs::path& resume, uint32_t ranks,
              Communicator* communicator) {
  RunOptions options = run_of(way, folder, ranks);
  options.communicator = communicator;
  TrainerRun run(options);
  if (!resume.empty()) run.trainer->resume(resume);
  Outcome outcome;
  outcome.losses = run.train(steps - run.trainer->completed_steps());
  outcome.evaluation = run.trainer->evaluate(7);
  if (communicator == nullptr || communicator->rank() == 0) {
    run.trainer->begin_save(run.saves_in(folder / "saves"));
  } else {
    run.trainer->follow_begin_save();
  }
  run.trainer->finish_save();
  return outcome;
}

std::vector<Outcome> train_on(const Way& way, uint32_t ranks, const fs::path& folder, uint64_t steps,
                              const fs::path& resume = {}) {
  if (ranks == 1) return {train(way, folder, steps, resume, 1, nullptr)};
  ThreadWorld world({.ranks = ranks});
  std::vector<Outcome> outcomes(ranks);
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         outcomes[rank.rank()] = train(way, folder, steps, resume, ranks, &rank);
       }))
    EXPECT_EQ(failure, "");
  return outcomes;
}

std::string saved_states(const fs::path& folder) {
  return bytes_of_file(folder / "saves" / fmt::format("step-{:08}", kSteps) / "states.bin");
}

TEST(RanksTraining, HasTheLossesAndCheckpointsOfOneRank) {
  const ScratchFolder alone;
  const Outcome expected = train_on({}, 1, alone.path(), kSteps).front();
  ASSERT_EQ(expected.losses.size(), kSteps);
  ASSERT_FALSE(saved_states(alone.path()).empty());
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const ScratchFolder folder;
    for (const Outcome& outcome : train_on({}, ranks, folder.path(), kSteps))
      EXPECT_EQ(outcome, expected) << ranks;
    EXPECT_TRUE(saved_states(folder.path()) == saved_states(alone.path())) << ranks;
  }
}

class RanksGoOn : public ::testing::TestWithParam<size_t> {
 protected:
  const Way& way() const { return ways()[GetParam()]; }
};
INSTANTIATE_TEST_SUITE_P(Ways, RanksGoOn, ::testing::Range(size_t{0}, ways().size()));

// 25 pairs each.
TEST_P(RanksGoOn, FromACheckpointOfAnotherNumberOfRanks) {
  const ScratchFolder alone;
  const Outcome expected = train_on(way(), 1, alone.path(), kSteps).front();
  for (const uint32_t before : {1u, 2u, 3u, 4u, 8u}) {
    const ScratchFolder first;
    train_on(way(), before, first.path(), 1);
    for (const uint32_t after : testing::thinned<uint32_t>({3, 1, 2, 4, 8})) {
      SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
      const ScratchFolder second;
      for (const Outcome& outcome : train_on(way(), after, second.path(), kSteps, first.path() / "saves")) {
        EXPECT_EQ(outcome.losses, std::vector(expected.losses.begin() + 1, expected.losses.end()));
        EXPECT_EQ(outcome.evaluation, expected.evaluation);
      }
      EXPECT_TRUE(saved_states(second.path()) == saved_states(alone.path()));
    }
  }
}

// --- In place ---

// Trains to `steps` and commits there; goes on from the commit of any number of ranks that is in the folder.
void train_in_place(const Way& way, const fs::path& folder, uint64_t steps, uint32_t ranks,
                    Communicator* communicator, std::vector<std::byte>& state) {
  RunOptions options = run_of(way, folder, ranks);
  options.durable = "true";
  options.communicator = communicator;
  std::optional<StateSet> set;
  for (const StateSet& found : find_state_sets(tier_paths(options_of(options).config.placement))) {
    if (found.newest() == nullptr) continue;
    if (found.shards.size() == ranks) {
      options.start = TierStart::resume;
    } else {
      set = found;
    }
  }
  TrainerRun run(options);
  if (set && options.start == TierStart::fresh) run.trainer->resume(*set);
  run.train(steps - run.trainer->completed_steps());
  run.trainer->begin_commit();
  EXPECT_EQ(run.trainer->finish_commit().commit_step, steps);
  std::vector<std::byte> found = run.state();
  if (communicator == nullptr || communicator->rank() == 0) state = std::move(found);
}

std::vector<std::byte> state_in_place(const Way& way, const fs::path& folder, uint64_t steps,
                                      uint32_t ranks) {
  std::vector<std::byte> state;
  if (ranks == 1) {
    train_in_place(way, folder, steps, 1, nullptr, state);
    return state;
  }
  ThreadWorld world({.ranks = ranks});
  for (const std::string& failure : testing::on_every_rank(
           world, [&](Communicator& rank) { train_in_place(way, folder, steps, ranks, &rank, state); }))
    EXPECT_EQ(failure, "") << ranks;
  return state;
}

// 25 pairs each.
TEST_P(RanksGoOn, InPlaceFromWhatAnotherNumberOfRanksHasCommitted) {
  const ScratchFolder alone;
  const std::vector<std::byte> expected = state_in_place(way(), alone.path(), kSteps, 1);
  ASSERT_FALSE(expected.empty());
  for (const uint32_t before : {1u, 2u, 3u, 4u, 8u}) {
    const ScratchFolder first;
    state_in_place(way(), first.path(), 1, before);
    for (const uint32_t after : testing::thinned<uint32_t>({3, 1, 2, 4, 8})) {
      SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
      const ScratchFolder second;
      fs::copy(first.path(), second.path(), fs::copy_options::recursive);
      EXPECT_TRUE(state_in_place(way(), second.path(), kSteps, after) == expected);
    }
  }
}

// --- In place, in another layout of records ---

constexpr const char* kForms[][2] = {  // terrace.compact_state, terrace.state_type
    {"false", "fp32"},
    {"true", "int8"},
    {"true", "bf16"},
    {"false", "int8"}};

RunOptions run_in_form(const fs::path& folder, uint32_t ranks, size_t form, Communicator* communicator) {
  RunOptions options = run_of({.compact = kForms[form][0]}, folder, ranks);
  options.durable = "true";
  options.communicator = communicator;
  options.more.push_back({"terrace.state_type", kForms[form][1], "a test"});
  return options;
}

// Trains to `steps` and gives the state; where a commit is there, it goes on from it in the second place.
std::vector<std::byte> convert_in_place(const fs::path& folder, uint64_t steps, uint32_t ranks, size_t form) {
  std::vector<std::byte> state;
  const auto train = [&](Communicator* communicator) {
    RunOptions options = run_in_form(folder, ranks, form, communicator);
    const auto sets = find_state_sets(tier_paths(options_of(options).config.placement));
    options.is_in_second_place = !sets.empty();
    TrainerRun run(options);
    if (!sets.empty()) run.trainer->resume(sets.back());
    run.train(steps - run.trainer->completed_steps());
    run.trainer->begin_commit();
    EXPECT_EQ(run.trainer->finish_commit().commit_step, steps);
    std::vector<std::byte> found = run.state();
    if (communicator == nullptr || communicator->rank() == 0) state = std::move(found);
  };
  if (ranks == 1) {
    train(nullptr);
    return state;
  }
  ThreadWorld world({.ranks = ranks});
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) { train(&rank); }))
    EXPECT_EQ(failure, "") << ranks;
  return state;
}

// Each of four layouts from each of them, as one rank does it through a checkpoint.
TEST(RanksTraining, GoesOnInPlaceWithRecordsOfAnotherLayout) {
  for (size_t before = 0; before < std::size(kForms); ++before) {
    const ScratchFolder saved;
    {
      TrainerRun run(run_in_form(saved.path(), 1, before, nullptr));
      run.train(1);
      run.trainer->begin_save(run.saves_in(saved.path() / "saves"));
      run.trainer->finish_save();
    }
    for (const uint32_t ranks : {1u, 3u}) {
      const ScratchFolder first;
      convert_in_place(first.path(), 1, ranks, before);
      for (size_t after = 0; after < std::size(kForms); ++after) {
        SCOPED_TRACE(fmt::format("{} ranks, form {}, then {}", ranks, before, after));
        const ScratchFolder second, through;
        fs::copy(first.path(), second.path(), fs::copy_options::recursive);
        TrainerRun expected(run_in_form(through.path(), 1, after, nullptr));
        expected.trainer->resume(saved.path() / "saves");
        expected.train(kSteps - 1);
        EXPECT_TRUE(convert_in_place(second.path(), kSteps, ranks, after) == expected.state());
      }
    }
  }
}

// In the step that has come to it, whichever step of the process that is.
TEST(RanksTraining, NamesTheStepInWhichParametersChangedOnTheirWay) {
  const ScratchFolder before;
  train_on({}, 2, before.path(), 1);
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "nvme");
  constexpr uint64_t kGather = 2;  // behind what the ranks tell each other before they train
  CommFaults wrong({{CommFaultKind::corrupt, Lane::gather, 1, kGather}});
  ThreadWorld world({.ranks = 2, .hook = &wrong});
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         RunOptions options = four_micro_batches(folder.path() / "nvme", 2);
         options.communicator = &rank;
         options.more.push_back({"terrace.compare_ranks_every_steps", "1", "a test"});
         TrainerRun run(options);
         run.trainer->resume(before.path() / "saves");
         run.train(2);
       })) {
    EXPECT_NE(failure.find("parameters changed on their way between ranks in step 2"), std::string::npos)
        << failure;
    EXPECT_NE(failure.find("what rank 1 got of the share of rank 0"), std::string::npos) << failure;
  }
}

// Counts the ballots during which the step thread is seen waiting, and the others: a rank that does not
// answer one of the others would never be named.
class UnwatchedVotes final : public CommHook {
 public:
  void follow(uint32_t rank, const StepWatch* watch) { watches_[rank] = watch; }
  std::exception_ptr before(const CommOperation& operation) override {
    const StepWatch* const watch = watches_[operation.rank];
    if (operation.kind != CommKind::ballot || operation.lane != Lane::control || watch == nullptr)
      return nullptr;
    ++(watch->current() ? watched_ : unwatched_);
    return nullptr;
  }
  void after(const CommOperation&) override {}
  uint64_t watched() const { return watched_; }
  uint64_t unwatched() const { return unwatched_; }

 private:
  std::array<std::atomic<const StepWatch*>, 2> watches_{};
  std::atomic<uint64_t> watched_ = 0, unwatched_ = 0;
};

TEST(RanksTraining, WaitsForNoWordOfAnotherRankUnseen) {
  const ScratchFolder folder;
  UnwatchedVotes votes;
  ThreadWorld world({.ranks = 2, .hook = &votes});
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         RunOptions options = run_of({}, folder.path(), 2);
         options.durable = "true";
         options.communicator = &rank;
         TrainerRun run(options);
         Trainer& trainer = *run.trainer;
         votes.follow(rank.rank(), &trainer.offloader().report().watch());
         run.train(2);
         trainer.look_after_state();
         EXPECT_FALSE(trainer.any_rank(false));
         EXPECT_TRUE(trainer.first_rank(true));
         trainer.evaluate(3);
         if (rank.rank() == 0) {
           trainer.begin_save(run.saves_in(folder.path() / "saves"));
         } else {
           trainer.follow_begin_save();
         }
         trainer.finish_save();
         votes.follow(rank.rank(), nullptr);
       }))
    EXPECT_EQ(failure, "");
  EXPECT_EQ(votes.unwatched(), 0u);
  EXPECT_GT(votes.watched(), 0u);
}

// Holds the last word of rank 1 on a commit until the first rank is seen waiting for ranks.
class HeldCommit final : public CommHook {
 public:
  void follow(const StepWatch& of_first) { first_ = &of_first; }
  std::exception_ptr before(const CommOperation& operation) override {
    if (operation.lane != Lane::commit || operation.rank != 1) return nullptr;
    testing::comes_true([&] {
      if (seen_) return true;
      if (const StepWatch* const first = first_) {
        const std::optional<uint64_t> wait = first->current();
        seen_ = wait && first->is_for_ranks(*wait);
      }
      return seen_.load();
    });
    return nullptr;
  }
  void after(const CommOperation&) override {}
  bool seen() const { return seen_; }

 private:
  std::atomic<const StepWatch*> first_ = nullptr;
  std::atomic<bool> seen_ = false;
};

TEST(RanksTraining, WaitsForRanksWhereACommitDoes) {
  const ScratchFolder folder;
  HeldCommit held;
  ThreadWorld world({.ranks = 2, .hook = &held});
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         RunOptions options = run_of({}, folder.path(), 2);
         options.durable = "true";
         options.commit_every_steps = "1";
         options.communicator = &rank;
         TrainerRun run(options);
         if (rank.rank() == 0) held.follow(run.trainer->offloader().report().watch());
         run.train(1);
         run.trainer->look_after_state();
         run.trainer->finish_commit();
       }))
    EXPECT_EQ(failure, "");
  EXPECT_TRUE(held.seen());
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
