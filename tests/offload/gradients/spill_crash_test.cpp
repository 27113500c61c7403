// A process that is killed while gradients are on their way to nvme or back leaves its last commit whole;
// what it had spilled is nobody's, and the run that goes on ends with the bits of one that never died.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>

#include "offload/gradients/spill_rig.h"
#include "support/child_test.h"
#include "support/sanitized.h"

namespace terrace::spill_crash_test {
namespace {

constexpr uint64_t kSteps = 5;

struct Life {
  CommitCase c;
  uint64_t requests = 0;  // for spilled gradients, before the one at which it ends
  std::vector<std::filesystem::path> folders;
};

Life life_of(uint32_t seed, const std::filesystem::path& folder) {
  std::mt19937 random(seed);
  Life life;
  // The first seeds walk the modes and the placements, so that each is there.
  life.c.mode = kUpdateModes[seed % 3];
  life.c.parameters = seed % 2 == 0 ? Placement::cpu : Placement::nvme;
  life.c.accumulation = life.c.parameters == Placement::cpu ? 2 : 1 + random() % 2;
  life.c.layout = kLayouts[random() % kLayouts.size()];
  life.c.accumulation_type = random() % 2 == 0 ? DataType::fp32 : DataType::bf16;
  life.c.engine = io::engine_kinds()[random() % io::engine_kinds().size()];
  life.c.host_budget = random() % 2 == 0 ? spill_all : spill_some;
  life.c.threads = 1;
  life.requests = random() % 120;
  life.folders = {folder / "a"};
  if (random() % 3 == 0) life.folders.push_back(folder / "b");
  return life;
}

// Run by the test below, in a process of its own.
TEST(SpillCrashChild, DISABLED_TrainsUntilItIsKilled) {
  const std::filesystem::path folder = testing::child_folder();
  Life life = life_of(testing::child_seed(), folder);
  uint64_t left = life.requests;
  GradientRequests requests([&left](const io::Request&) {
    if (left-- == 0) kill(getpid(), SIGKILL);
  });
  life.c.decorate = requests.decorator();
  CommitRig rig(life.c, life.folders);
  std::ofstream durable(folder / "durable");
  for (uint64_t step = 1; step <= kSteps; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
    if (step % 2 == 0) continue;
    rig.offloader->commits().finish();
    durable << step << std::endl;
  }
}

bool has_gradient_file(const Life& life) {
  return std::ranges::any_of(life.folders, [](const std::filesystem::path& path) {
    return std::filesystem::exists(path / "terrace-tier" / "grads.tier");
  });
}

TEST(SpillCrash, AtAnyRequestForAGradientLosesNoCommitAndChangesNoBit) {
  uint32_t killed = 0, resumed = 0;
  for (uint32_t seed = 1; seed <= 30; seed += testing::kOneIn) {
    const ScratchFolder folder;
    Life life = life_of(seed, folder.path());
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, text_of(life.c)));
    for (const std::filesystem::path& path : life.folders) std::filesystem::create_directory(path);
    const int status = testing::run_test_in_child("SpillCrashChild.*", seed, folder.path());
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      EXPECT_TRUE(has_gradient_file(life)) << "it died before it had any";
      ++killed;
    } else {
      ASSERT_EQ(WEXITSTATUS(status), 0);
    }
    uint64_t noted = 0;
    std::ifstream durable(folder.path() / "durable");
    while (durable >> noted) {
    }
    if (!look_at_tier(life.folders).whole) {
      EXPECT_EQ(noted, 0u) << "a commit is lost";
      continue;
    }
    ++resumed;
    CommitCase held = life.c;
    held.host_budget = spill_nothing;
    const auto expected = states_without_commits(held, kSteps);
    CommitCase c = life.c;
    c.start = TierStart::resume;
    c.engine = io::EngineKind::threads;
    {
      CommitRig rig(c, life.folders);
      ASSERT_GT(rig.offloader->plan().spilled_chunks, 0u);
      const uint64_t step = step_of(rig.offloader->commits().taken_up_info());
      EXPECT_GE(step, noted);
      EXPECT_EQ(rig.state(), expected[step]);
      for (uint64_t s = step + 1; s <= kSteps; ++s) {
        rig.step(s);
        rig.offloader->commits().begin(step_info(s));
      }
      EXPECT_EQ(rig.state(), expected[kSteps]);
    }
    EXPECT_FALSE(has_gradient_file(life)) << "it goes with the run";
  }
  EXPECT_GT(killed, 20 / testing::kOneIn);
  EXPECT_GT(resumed, 8 / testing::kOneIn);
  if (!testing::kSanitized) {
    EXPECT_LT(resumed, 30u) << "none died before its first commit";
  }
}

}  // namespace
}  // namespace terrace::spill_crash_test
