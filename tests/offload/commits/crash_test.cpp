// Law 3: a process that dies at any request of training and commits leaves a commit that was the last durable
// one or a later one, whole; and the run that takes it up ends with the bits of a run that never died.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <random>

#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "support/child_test.h"
#include "support/dying_engine.h"
#include "support/sanitized.h"

namespace terrace::crash_test {
namespace {

constexpr uint64_t kSteps = 6;

struct Life {
  CommitCase c;
  uint64_t cadence = 1;
  int64_t requests = 0;  // that the child lives for, after the start
  bool after = false;
  std::vector<std::filesystem::path> folders;
};

Life life_of(uint32_t seed, const std::filesystem::path& folder) {
  std::mt19937 random(seed);
  Life life;
  constexpr Placement kPlacements[] = {Placement::none, Placement::cpu, Placement::nvme};
  life.c.parameters = kPlacements[random() % 3];
  life.c.with_frozen = life.c.parameters == Placement::nvme && random() % 2 == 0;
  life.c.cached_quarters = random() % 5;
  life.c.engine = io::engine_kinds()[random() % io::engine_kinds().size()];
  life.c.threads = 1;
  life.cadence = 1 + random() % 2;
  life.requests = static_cast<int64_t>(random() % 100);
  life.after = random() % 2 == 0;
  life.folders = {folder / "a"};
  if (random() % 3 == 0) life.folders.push_back(folder / "b");
  life.c.layout = kLayouts[seed % kLayouts.size()];
  if (life.c.parameters != Placement::none) life.c.mode = static_cast<UpdateMode>(random() % 3);
  if (seed % 3 == 0 && life.c.mode != UpdateMode::next_forward) life.c.processor_share = 0.5;
  return life;
}

// Run by the test below, in a process of its own: trains until it dies, and notes which steps were durable.
TEST(CrashChild, DISABLED_TrainsUntilItDies) {
  const std::filesystem::path folder = testing::child_folder();
  Life life = life_of(testing::child_seed(), folder);
  static std::atomic<int64_t> left{INT64_MAX / 2};
  life.c.decorate = [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<testing::DyingEngine>(std::move(engine), left, life.after);
  };
  CommitRig rig(life.c, life.folders);
  left = life.requests;
  std::ofstream durable(folder / "durable");
  for (uint64_t step = 1; step <= kSteps; ++step) {
    rig.step(step);
    if (step % life.cadence != 0) continue;
    rig.offloader->commits().begin(step_info(step));
    if (step % 4 != 0) continue;
    rig.offloader->commits().finish();
    durable << step << std::endl;
  }
}

int run_child(uint32_t seed, const std::filesystem::path& folder) {
  const int status = testing::run_test_in_child("CrashChild.*", seed, folder);
  EXPECT_TRUE(WIFEXITED(status)) << "seed " << seed;
  return WEXITSTATUS(status);
}

TEST(Crash, AtAnyRequestLeavesTheLastCommitWhole) {
  uint32_t resumed = 0, died = 0;
  for (uint32_t seed = 1; seed <= 30; seed += testing::kOneIn) {
    const ScratchFolder folder;
    Life life = life_of(seed, folder.path());
    for (const std::filesystem::path& path : life.folders) std::filesystem::create_directory(path);
    const int ended = run_child(seed, folder.path());
    ASSERT_TRUE(ended == 0 || ended == testing::kDied) << "seed " << seed << " ended with " << ended;
    died += ended == testing::kDied ? 1 : 0;
    uint64_t noted = 0;
    std::ifstream durable(folder.path() / "durable");
    while (durable >> noted) {
    }
    const FoundTier found = look_at_tier(life.folders);
    if (!found.whole) {
      EXPECT_EQ(noted, 0u) << "seed " << seed << " lost a commit: " << found.trouble;
      EXPECT_FALSE(found.present && found.commit > 0) << found.trouble;
      continue;
    }
    ++resumed;
    const auto expected = states_without_commits(life.c, kSteps);
    CommitCase c = life.c;
    c.start = TierStart::resume;
    c.cached_quarters = (c.cached_quarters + seed) % 5;
    c.engine = io::EngineKind::threads;
    std::ranges::reverse(life.folders);
    CommitRig rig(c, life.folders);
    const uint64_t step = step_of(rig.offloader->commits().taken_up_info());
    EXPECT_GE(step, noted) << "seed " << seed;
    ASSERT_LE(step, kSteps);
    EXPECT_EQ(rig.state(), expected[step]) << "seed " << seed;
    for (uint64_t s = step + 1; s <= kSteps; ++s) {
      rig.step(s);
      rig.offloader->commits().begin(step_info(s));
    }
    EXPECT_EQ(rig.state(), expected[kSteps]) << "seed " << seed;
  }
  EXPECT_GT(died, 20 / testing::kOneIn);
  EXPECT_GT(resumed, 10 / testing::kOneIn);
  if (!testing::kSanitized) {
    EXPECT_LT(resumed, 30u) << "none died before its first commit";
  }
}

}  // namespace
}  // namespace terrace::crash_test
