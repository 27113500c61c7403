// A Trainer whose states are on nvme: commits at their times, runs that go on in place, and checkpoints that
// are copied while training goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>

#include <terrace/memory/tier/tier_space.h>

#include "reference/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace::trainer_commits_test {
namespace {

using namespace trainer_tests;
using testing::expect_error;

constexpr uint64_t kSecondNs = 1'000'000'000;

// Without what tells runs apart, and the checksum that it is part of.
std::string manifest_of(const fs::path& checkpoint) {
  std::string text = bytes_of_file(checkpoint / "manifest.json");
  for (const std::string_view before : {R"(\"run\": \")", R"("manifest_checksum": ")"}) {
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    text.erase(at + before.size(), 16);
  }
  return text;
}

void expect_same_checkpoint(const fs::path& one, const fs::path& other) {
  EXPECT_FALSE(bytes_of_file(one / "states.bin").empty()) << one;
  EXPECT_TRUE(bytes_of_file(one / "states.bin") == bytes_of_file(other / "states.bin"));
  EXPECT_EQ(manifest_of(one), manifest_of(other));
}

TEST(TrainerCommits, AreCommittedWhenStepsOrTheClockSaySo) {
  const ScratchFolder nvme;
  FakeClock clock;
  RunOptions options;
  options.nvme = nvme.path();
  options.commit_every_seconds = "10";
  options.commit_every_steps = "3";
  options.clock = &clock;
  TrainerRun run(options);
  ASSERT_TRUE(run.trainer->offloader().commits().are_kept())
      << run.trainer->offloader().commits().why_not_kept();
  run.train(2);
  run.trainer->look_after_state();
  EXPECT_FALSE(run.trainer->finish_commit().commit_step);
  clock.advance(10 * kSecondNs);
  run.trainer->look_after_state();
  EXPECT_EQ(run.trainer->finish_commit().commit_step, 2u);
  clock.advance(9 * kSecondNs);
  run.train(2);
  run.trainer->look_after_state();
  EXPECT_FALSE(run.trainer->finish_commit().commit_step);
  run.train(1);  // the third since
  run.trainer->look_after_state();
  EXPECT_EQ(run.trainer->finish_commit().commit_step, 5u);
  EXPECT_EQ(run.trainer->durable_step(), 5u);
  EXPECT_EQ(run.trainer->offloader().report().counters().commit_count, 2u);
}

// A step that fails tells what survives it: a commit that has become durable meanwhile, though nothing
// between two steps has noticed.
TEST(TrainerCommits, SurviveFromTheMomentOnAtWhichTheyAreDurable) {
  const ScratchFolder nvme;
  RunOptions options;
  options.nvme = nvme.path();
  TrainerRun run(options);
  run.train(2);
  run.trainer->begin_commit();
  run.trainer->finish_commit();
  EXPECT_EQ(run.trainer->durable_step(), 2u);
  run.train(1);
  run.trainer->finish_update();
  run.trainer->begin_commit();
  run.trainer->offloader().commits().end();
  EXPECT_EQ(run.trainer->durable_step(), 3u);
  EXPECT_EQ(run.trainer->finish_commit().commit_step, 3u) << "and it is told once, as ever";
}

TEST(TrainerCommits, AreGoneOnFromInPlaceWithTheBitsOfARunThatWasNot) {
  for (const char* bf16 : {"false", "true"}) {
    SCOPED_TRACE(bf16);
    const ScratchFolder nvme, saved;
    RunOptions plain;
    plain.precision = bf16;
    TrainerRun whole(plain);
    const std::vector<double> losses = whole.train(6);
    whole.trainer->save(whole.saves_in(saved.path() / "whole"));

    RunOptions options = plain;
    options.nvme = nvme.path();
    options.host_memory = least_host_memory(options);
    {
      TrainerRun first(options);
      first.train(3);
      first.trainer->begin_commit();
      first.train(2);  // lost
    }
    options.start = TierStart::resume;
    options.host_memory = "64MiB";
    options.chunk_elements = "8192";  // that of the commit counts
    TrainerRun second(options);
    EXPECT_EQ(second.trainer->completed_steps(), 3u);
    EXPECT_EQ(second.trainer->consumed_samples(), 3u);
    EXPECT_EQ(second.trainer->durable_step(), 3u);
    EXPECT_EQ(second.trainer->plan().chunk_elements, 4096u);
    EXPECT_EQ(second.train(3), std::vector<double>(losses.begin() + 3, losses.end()));
    second.trainer->begin_save(second.saves_in(saved.path() / "resumed"));
    const KeptState kept = second.trainer->finish_save();
    ASSERT_TRUE(kept.checkpoint);
    EXPECT_EQ(kept.checkpoint->step, 6u);
    expect_same_checkpoint(saved.path() / "whole/step-00000006", kept.checkpoint->folder);
  }
}

TEST(TrainerCommits, OfAnotherRunAreRefusedAndStay) {
  const ScratchFolder nvme;
  RunOptions options;
  options.nvme = nvme.path();
  {
    TrainerRun run(options);
    run.train(2);
    run.trainer->begin_commit();
  }
  const auto refused = [&](const RunOptions& other, const std::vector<std::string>& fragments) {
    expect_error(ErrorKind::config, fragments, [&] { TrainerRun run(other); });
  };
  refused(options, {nvme.path().string()});  // and nothing says that it may go
  options.start = TierStart::resume;
  RunOptions other = options;
  other.seed = "7";
  refused(other, {"saved with seed 42, now 7"});
  other = options;
  other.data = 2;
  refused(other, {"the files are other ones"});
  other = options;
  other.precision = "true";
  refused(other, {"fp32"});
  other = options;
  other.durable = "false";
  refused(other, {"terrace.durable is false"});
  EXPECT_EQ(TrainerRun(options).trainer->completed_steps(), 2u);
}

TEST(TrainerCommits, BecomeTheCheckpointThatASaveOfTheirStepWouldBeWhileTrainingGoesOn) {
  const ScratchFolder nvme, saved;
  RunOptions plain;
  TrainerRun waited(plain);
  waited.train(2);
  const fs::path expected = waited.trainer->save(waited.saves_in(saved.path() / "waited"));
  const std::vector<double> later = waited.train(4);

  RunOptions options;
  options.nvme = nvme.path();
  options.commit_every_steps = "1";
  for (const std::string& host : {std::string("64MiB"), least_host_memory(options)}) {
    SCOPED_TRACE(host);
    const ScratchFolder meanwhile;
    options.host_memory = host;
    TrainerRun run(options);
    run.train(2);
    KeptState kept = run.trainer->begin_save(run.saves_in(meanwhile.path()));
    std::optional<SavedCheckpoint> checkpoint = kept.checkpoint;
    std::vector<double> losses;
    for (int s = 0; s < 4; ++s) {
      losses.push_back(run.train(1).front());
      kept = run.trainer->look_after_state();
      if (kept.checkpoint) checkpoint = kept.checkpoint;
    }
    EXPECT_EQ(losses, later);
    kept = run.trainer->finish_save();
    if (kept.checkpoint) checkpoint = kept.checkpoint;
    ASSERT_TRUE(checkpoint);
    EXPECT_EQ(checkpoint->step, 2u);
    expect_same_checkpoint(expected, checkpoint->folder);
    run.trainer->offloader().commits().keep_tier(false);
  }
}

// Commits and checkpoints write what is newer in host memory, a manifest, and nothing else into the tier.
TEST(TrainerCommits, CostTheRecordsInHostMemoryAndAManifest) {
  RunOptions options;
  const ScratchFolder nvme, saved;
  options.nvme = nvme.path();
  for (const bool cached : {true, false}) {
    SCOPED_TRACE(cached);
    options.host_memory = "64MiB";
    if (!cached) options.host_memory = least_host_memory(options);
    TrainerRun run(options);
    run.train(1);
    run.trainer->begin_commit();
    run.trainer->finish_commit();
    const OffloadCounters before = run.trainer->offloader().report().counters();
    run.train(1);
    run.trainer->begin_save(run.saves_in(saved.path() / (cached ? "one" : "other")));
    run.train(2);
    run.trainer->finish_save();
    const OffloadCounters now = run.trainer->offloader().report().counters();
    const MemoryPlan& plan = run.trainer->plan().memory;
    EXPECT_EQ(now.record_write_bytes,
              4 * run.trainer->offloader().report().traffic_bound().record_write_bytes);
    EXPECT_EQ(now.commit_write_bytes - before.commit_write_bytes,
              plan.host_record_slots * plan.record_slot_bytes);
    EXPECT_EQ(plan.host_record_slots > 0, cached);
    const fs::path paths[] = {nvme.path()};
    const FoundTier tier = look_at_tier(paths);
    ASSERT_EQ(tier.commits.size(), 1u);
    EXPECT_EQ(now.manifest_bytes - before.manifest_bytes, fs::file_size(tier.commits[0].path));
    run.trainer->offloader().commits().keep_tier(false);
  }
}

TEST(TrainerCommits, SurviveACheckpointThatFailsWhichIsSaidBetweenTwoSteps) {
  const ScratchFolder nvme, saved;
  RunOptions options;
  options.nvme = nvme.path();
  TrainerRun run(options);
  run.train(1);
  fs::create_directory(saved.path() / "taken");
  std::ofstream(saved.path() / "taken/step-00000001") << "a file";
  run.trainer->begin_save(run.saves_in(saved.path() / "taken"));
  run.train(1);
  expect_error(ErrorKind::config, {"taken", "not a folder"}, [&] { run.trainer->finish_save(); });
  run.train(1);
  run.trainer->begin_save(run.saves_in(saved.path() / "free"));
  EXPECT_EQ(run.trainer->finish_save().checkpoint->step, 3u);
  EXPECT_EQ(run.trainer->durable_step(), 3u);
}

TEST(TrainerCommits, ThatAreRetainedOutliveTheNextOnes) {
  const ScratchFolder nvme;
  RunOptions options;
  options.nvme = nvme.path();
  options.retained = "2";
  TrainerRun run(options);
  for (int s = 1; s <= 4; ++s) {
    run.train(1);
    run.trainer->begin_commit(s < 4);  // the first three
  }
  run.trainer->finish_commit();
  const fs::path paths[] = {nvme.path()};
  const FoundTier tier = look_at_tier(paths);
  std::vector<bool> retained;
  for (const CommitFile& file : tier.commits) retained.push_back(file.retained);
  EXPECT_THAT(retained, ::testing::ElementsAre(true, true, false));
}

}  // namespace
}  // namespace terrace::trainer_commits_test
