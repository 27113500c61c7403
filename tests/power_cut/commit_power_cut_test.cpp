// Law 3 for training with commits: whatever the disks hold after the power went at any moment of it, the last
// commit whose commit had ended is taken up, or a later one, and training goes on from it to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include <terrace/aio/file.h>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "power_cut/cut_power.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::commit_power_cut_test {
namespace {

namespace fs = std::filesystem;
using laws::Combination;
using laws::LawTraining;
using power_cut::CutCase;
using power_cut::CutDisk;
using power_cut::DiskLog;

constexpr uint64_t kSteps = 4;
constexpr size_t kDisksOfAMoment = 3;
constexpr uint64_t kLookedAt = 60;  // disks of a combination

// Every pair of what decides when and where anything is written. The log sees what `threads` writes.
const std::vector<Combination>& combinations() {
  static const std::vector<Combination> list =
      laws::covering_array_with_commits({{laws::kEngine, {"threads"}},
                                         {laws::kThreads, {"1"}},
                                         {laws::kPolicy, {"opt"}},
                                         {laws::kDevice, {"least", "ample"}},
                                         {laws::kPrecision, {"bf16", "mixed"}},
                                         {laws::kAccumulation, {"1"}},
                                         {laws::kClipping, {"0"}},
                                         {laws::kPrefetch, {"2"}},
                                         {laws::kStrict, {"off"}},
                                         {laws::kAccumulationType, {"fp32"}},
                                         {laws::kModel, {"gpt2", "frozen"}},
                                         {laws::kActivations, {"kept"}},
                                         {laws::kOptimizer, {"adam"}},
                                         {laws::kMoments, {"fp32"}},
                                         {laws::kBudgetChange, {"none", "down and up"}},
                                         {laws::kOrder, {"batch"}},
                                         {laws::kCallers, {"one"}},
                                         {laws::kInitialValues, {"callback"}}});
  return list;
}

// Each commit goes on while the next step is trained.
void train_and_commit(const fs::path& root, const Combination& c, DiskLog& log) {
  laws::tier_folders(c, root);
  io::sync_folder(root);
  LawTraining training(c, {.folder = root});
  uint64_t committed = 0;
  if (training.offloader().commits().earlier_stays()) log.mark("1");  // until this training has a commit
  while (training.completed_steps() < kSteps) {
    training.choose_mode();
    training.step();
    training.offloader().commits().finish();
    if (committed > 0) log.mark(std::to_string(committed));
    if (training.commits_now()) {
      training.begin_commit();
      committed = training.completed_steps();
    }
    training.change_budget();
    if (training.completed_steps() == 2) training.begin_save();
  }
  training.finish_save();
  training.offloader().commits().finish();
  log.mark(std::to_string(committed));
}

class CommitPowerCut : public ::testing::TestWithParam<size_t> {};

TEST_P(CommitPowerCut, IsTakenUpFromTheLastCommitOrALaterOneAndGoesOnToTheSameBits) {
  const Combination& c = combinations()[GetParam()];
  SCOPED_TRACE(laws::describe(c));
  const laws::StatesByStep expected = laws::states_by_step(c, kSteps);
  const ScratchFolder folder;
  DiskLog log(folder.path());
  train_and_commit(folder.path(), c, log);
  const std::vector<power_cut::DiskEvent> events = log.stop();
  const uint64_t stride = 1 + events.size() / kLookedAt;
  uint64_t resumed = 0, fresh = 0;
  std::array<uint64_t, 2> disks = {GetParam(), GetParam()};  // without a commit that had ended, and with one
  power_cut::for_each_cut(
      events, 20260109 + GetParam(), kDisksOfAMoment, [&](const CutCase& cut, const CutDisk& disk) {
        const uint64_t durable = cut.marked.empty() ? 0 : std::stoull(cut.marked);
        const bool is_durable = durable > 0;
        // Few have a commit, and a sanitizer leaves none of these out. The first failure says enough.
        const bool is_looked_at = disks[is_durable]++ % (is_durable ? stride : stride * testing::kOneIn) == 0;
        if (!is_looked_at || ::testing::Test::HasFailure()) return;
        SCOPED_TRACE(cut.words);
        ASSERT_NO_THROW((laws::expect_gone_on_from(c, disk(), expected, durable, false) ? resumed : fresh)++);
      });
  EXPECT_GT(resumed, 10);
  if (laws::level_of(c, laws::kBegins) == "anew") {
    EXPECT_GT(fresh, 10 / testing::kOneIn);
  }
}

INSTANTIATE_TEST_SUITE_P(Combinations, CommitPowerCut, ::testing::Range(size_t{0}, combinations().size()));

}  // namespace
}  // namespace terrace::commit_power_cut_test
