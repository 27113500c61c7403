#include "laws/kept_states.h"

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_space.h>

#include "laws/law_training.h"
#include "support/scratch_folder.h"

namespace terrace::laws {
namespace {

void expect_same_bits(LawTraining& training, const std::vector<std::vector<std::byte>>& states,
                      uint64_t durable) {
  const uint64_t step = training.completed_steps();
  EXPECT_GE(step, durable);
  ASSERT_LT(step, states.size());
  ASSERT_TRUE(training.state() == states[step]) << "taken up at step " << step;
  for (bool first = true; training.completed_steps() + 1 < states.size(); first = false) {
    training.choose_mode();
    training.step();
    if (first) training.begin_commit();
  }
  ASSERT_TRUE(training.state() == states.back()) << "gone on from step " << step;
}

}  // namespace

std::vector<Combination> covering_array_with_commits(std::vector<OnlyLevels> only) {
  // No commits are kept of masters that are the program's parameters.
  only.insert(
      only.end(),
      {{kStates, {"nvme"}}, {kCommits, {"1", "2"}}, {kChunk, {"4096"}}, {kMaster, {"whole", "remainder"}}});
  std::vector<Combination> all = covering_array(Strength::pairs, only);
  for (Combination& c : all) {
    if (level_of(c, kModel) == "frozen" || level_of(c, kModel) == "lora") set_level(c, kParameters, "nvme");
  }
  return all;
}

StatesByStep states_by_step(Combination combination, uint64_t steps) {
  set_level(combination, kBegins, "anew");
  const ScratchFolder folder;
  LawTraining training(combination, {.folder = folder.path()});
  StatesByStep expected{{training.state()}, training.records().size()};
  while (training.completed_steps() < steps) {
    training.choose_mode();
    training.step();
    expected.states.push_back(training.state());
    training.change_budget();
  }
  return expected;
}

bool expect_gone_on_from(const Combination& combination, const std::filesystem::path& folder,
                         const StatesByStep& expected, uint64_t durable, bool may_be_corrupt) {
  const FoundTier found = look_at_tier(tier_folders(combination, folder));
  if (!found.whole) {
    EXPECT_TRUE(durable == 0 || may_be_corrupt) << found.trouble;
    return false;
  }
  try {
    LawTraining training(combination, {.folder = folder, .start = TierStart::resume});
    expect_same_bits(training, expected.states, durable);
  } catch (const Error& error) {
    EXPECT_TRUE(may_be_corrupt && error.kind() == ErrorKind::corrupt) << error.what();
  }
  return true;
}

}  // namespace terrace::laws
