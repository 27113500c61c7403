// Checkpoints of several ranks beside training: copied by the first one from the commit of all of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <mutex>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/runtime/checkpoint/commit_copies.h>

#include "comm/thread_world.h"
#include "reference/trainer_rig.h"
#include "support/rank_threads.h"

namespace terrace::trainer_tests {
namespace {

constexpr uint64_t kSaved = 2;  // the step of the checkpoints

struct Saving {
  std::string compact = "false";
  bool has_frozen_part = false;
  bool has_two_paths = false;
  std::string durable = "true";
};

RunOptions run_of(const Saving& saving, const fs::path& folder, Communicator* rank) {
  for (const char* path : {"nvme", "second"}) fs::create_directories(folder / path);
  RunOptions run;
  run.nvme = folder / "nvme";
  run.parameters = "nvme";
  run.durable = saving.durable;
  run.compact = saving.compact;
  run.chunk_elements = "16384";  // each rank has some tiles
  run.retained = "1";
  run.precision = "true";
  run.accumulation = "auto";
  run.more = {{"train_batch_size", "6", "a test"}, {"train_micro_batch_size_per_gpu", "2", "a test"}};
  if (saving.has_frozen_part) run.more.push_back({"terrace.frozen", R"(["*h.0.attn*"])", "a test"});
  if (saving.has_two_paths) {
    const std::string paths =
        fmt::format("[\"{}\", \"{}\"]", (folder / "nvme").string(), (folder / "second").string());
    run.more.push_back({"zero_optimization.offload_optimizer.nvme_path", paths, "a test"});
  }
  run.communicator = rank;
  if (rank != nullptr) run.more.push_back({"terrace.ranks", std::to_string(rank->size()), "a test"});
  return run;
}

fs::path step_folder(const fs::path& folder) {
  return folder / "saves" / fmt::format("step-{:08}", kSaved);
}

void expect_no_failure(ThreadWorld& world, const std::function<void(Communicator&)>& train) {
  for (const std::string& failure : testing::on_every_rank(world, train)) EXPECT_EQ(failure, "");
}

const std::vector<Saving>& ways_of_saving() {
  static const std::vector<Saving> list = {{},
                                           {.compact = "true", .has_two_paths = true},
                                           {.has_frozen_part = true},
                                           {.compact = "true", .has_frozen_part = true}};
  return list;
}

class RanksSaves : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Ways, RanksSaves, ::testing::Range(size_t{0}, ways_of_saving().size()));

TEST_P(RanksSaves, AreTheBytesOfASaveThatTrainingWaitsForAndTrainingGoesOn) {
  const ScratchFolder alone;
  const Saving& saving = ways_of_saving()[GetParam()];
  Saving waiting = saving;
  waiting.durable = "false";
  TrainerRun one(run_of(waiting, alone.path(), nullptr));
  one.train(kSaved);
  ASSERT_TRUE(one.trainer->begin_save(one.saves_in(alone.path() / "saves")).checkpoint);
  const std::vector<double> later = one.train(3);
  for (const uint32_t ranks : {2u, 3u}) {
    SCOPED_TRACE(ranks);
    const ScratchFolder folder;
    ThreadWorld world({.ranks = ranks});
    expect_no_failure(world, [&](Communicator& rank) {
      TrainerRun run(run_of(saving, folder.path(), &rank));
      Trainer& trainer = *run.trainer;
      run.train(kSaved);
      ASSERT_TRUE(trainer.copies_commits());
      KeptState kept = rank.rank() == 0 ? trainer.begin_save(run.saves_in(folder.path() / "saves"))
                                        : trainer.follow_begin_save();
      EXPECT_FALSE(kept.checkpoint);
      // A commit that stays waits for the copy, and the one that was copied goes with it.
      EXPECT_EQ(run.train(2), std::vector(later.begin(), later.begin() + 2));
      kept = trainer.begin_commit(true);
      EXPECT_EQ(kept.checkpoint.has_value(), rank.rank() == 0);
      EXPECT_EQ(run.train(1).front(), later.back());
      trainer.finish_commit();
    });
    for (const char* file : {"states.bin", "frozen.bin"}) {
      EXPECT_TRUE(bytes_of_file(step_folder(folder.path()) / file) ==
                  bytes_of_file(step_folder(alone.path()) / file))
          << file;
    }
  }
}

// By the label of each folder: what lies at the path on the host of the first rank may be another one.
TEST(RanksSaves, AreCopiedOnlyWhereTheFirstRankSeesTheFoldersOfAll) {
  const ScratchFolder folder, elsewhere;
  ThreadWorld world({.ranks = 2});
  const FlatSpace space({{.name = "of which nothing is copied", .shape = {1}}}, kTileElements);
  std::mutex mutex;
  std::map<std::string, std::vector<bool>> possible;
  expect_no_failure(world, [&](Communicator& rank) {
    TrainerRun run(run_of({}, folder.path(), &rank));
    Offloader& offloader = run.trainer->offloader();
    const WatchedVotes ranks(RankVotes(&rank), offloader.watch());
    const auto own = folder.path() / "nvme" / fmt::format("terrace-rank-{}-of-2", rank.rank());
    const std::map<std::string, fs::path> places = {{"seen", own},
                                                    {"missing", rank.rank() == 0 ? own : elsewhere.path()}};
    for (const auto& [name, place] : places) {
      const CommitCopies copies(offloader, space, std::span(&place, 1), ranks);
      const std::scoped_lock lock(mutex);
      possible[name].push_back(copies.are_possible());
    }
  });
  EXPECT_EQ(possible["seen"], std::vector<bool>({true, true}));
  EXPECT_EQ(possible["missing"], std::vector<bool>({false, false}));
}

TEST(RanksSaves, NameTheFileOfAnotherRankThatIsDamagedAndLeaveNothing) {
  const ScratchFolder folder;
  ThreadWorld world({.ranks = 2});
  const std::vector<std::string> failures = testing::on_every_rank(world, [&](Communicator& rank) {
    TrainerRun run(run_of({}, folder.path(), &rank));
    Trainer& trainer = *run.trainer;
    run.train(kSaved);
    trainer.begin_commit();
    trainer.finish_commit();
    if (rank.rank() == 1) {
      const fs::path file = folder.path() / "nvme" / "terrace-rank-1-of-2" / "terrace-tier" / "records.tier";
      std::fstream records(file, std::ios::in | std::ios::out | std::ios::binary);
      const std::string other(fs::file_size(file) - 4096, 'x');  // all but the mark at its end
      records.write(other.data(), static_cast<std::streamsize>(other.size()));
    }
    EXPECT_TRUE(trainer.first_rank(true));  // not before it is damaged
    if (rank.rank() == 0) trainer.begin_save(run.saves_in(folder.path() / "saves"));
    if (rank.rank() == 1) trainer.follow_begin_save();
    trainer.finish_save();
  });
  EXPECT_THAT(failures[0], ::testing::AllOf(::testing::HasSubstr("cannot save a checkpoint of the commit"),
                                            ::testing::HasSubstr("terrace-rank-1-of-2")));
  EXPECT_EQ(failures[1], "");
  EXPECT_FALSE(fs::exists(step_folder(folder.path())));
}

}  // namespace
}  // namespace terrace::trainer_tests
