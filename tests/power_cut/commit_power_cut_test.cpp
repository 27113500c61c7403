// Law 3 for training with commits: whatever the disks hold after the power went at any moment of it, the last
// commit whose commit had ended is taken up, or a later one, and training goes on from it to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>

#include <terrace/aio/file.h>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "laws/law_world.h"
#include "power_cut/cut_power.h"
#include "support/rank_threads.h"
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
constexpr uint64_t kLookedAt = 60;      // disks of a combination
constexpr uint64_t kLeastDurable = 20;  // of these, with a commit that had ended, where there are as many
constexpr uint64_t kLeastFresh = 2 + 10 / testing::kOneIn;  // and without one

// Every pair of what decides when and where anything is written. The log sees what `threads` writes.
std::vector<Combination> combinations_of(std::vector<std::string_view> ranks) {
  const bool are_several = ranks.front() != "1";
  std::vector<std::string_view> back_ends = {"threads"}, parameters = {"none", "cpu", "nvme"};
  if (are_several) back_ends = {"threads", "messages", "peers", "copies", "waiting"};
  if (are_several) parameters.push_back("divided");
  std::vector<std::string_view> hosts = {"1"};
  if (are_several) hosts = {"1", "2", "3"};
  return laws::covering_array_with_commits({{laws::kRanks, std::move(ranks)},
                                            {laws::kBackEnd, std::move(back_ends)},
                                            {laws::kHosts, std::move(hosts)},
                                            {laws::kParameters, std::move(parameters)},
                                            {laws::kChunk, {are_several ? "12288" : "4096"}},
                                            {laws::kEngine, {"threads"}},
                                            {laws::kPolicy, {"opt"}},
                                            {laws::kDevice, {"least", "ample"}},
                                            {laws::kPrecision, {"bf16", "mixed"}},
                                            {laws::kAccumulation, {"1"}},
                                            {laws::kGroup, {"1"}},
                                            {laws::kClipping, {"0"}},
                                            {laws::kPrefetch, {"2"}},
                                            {laws::kStrict, {"off"}},
                                            {laws::kAccumulationType, {"fp32"}},
                                            {laws::kModel, {"gpt2", "frozen"}},
                                            {laws::kActivations, {"kept", "saved on nvme"}},
                                            {laws::kOptimizer, {"adam"}},
                                            {laws::kMoments, {"fp32"}},
                                            {laws::kBudgetChange, {"none", "down and up"}},
                                            {laws::kOrder, {"batch"}},
                                            {laws::kCallers, {"one"}},
                                            {laws::kInitialValues, {"callback"}}});
}
const std::vector<Combination>& combinations() {
  static const std::vector<Combination> list = combinations_of({"1"});
  return list;
}
const std::vector<Combination>& combinations_of_ranks() {
  static const std::vector<Combination> list = combinations_of({"2", "3", "4"});
  return list;
}

// Marks the greatest step whose commit is known to be durable, whichever rank knows it.
class DurableMark {
 public:
  explicit DurableMark(DiskLog& log) : log_(log) {}
  void at_least(uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (step <= marked_) return;
    log_.mark(std::to_string(marked_ = step));
  }

 private:
  DiskLog& log_;
  std::mutex mutex_;
  uint64_t marked_ = 0;
};

// Each commit goes on while the next step is trained.
void train_and_commit(const fs::path& folder, const Combination& c, Communicator* ranks, DurableMark& mark) {
  LawTraining training(c, {.folder = folder, .ranks = ranks});
  uint64_t committed = 0;
  if (training.offloader().commits().earlier_stays()) mark.at_least(1);  // until this training has a commit
  while (training.completed_steps() < kSteps) {
    training.choose_mode();
    training.step();
    training.offloader().commits().finish();
    mark.at_least(committed);
    if (training.commits_now()) {
      training.begin_commit();
      committed = training.completed_steps();
    }
    training.change_budget();
    if (training.completed_steps() == 2) training.begin_save();
  }
  training.finish_save();
  training.offloader().commits().finish();
  mark.at_least(committed);
}

// The disks of all ranks lie below the folder.
void train_all(const fs::path& root, const Combination& c, DiskLog& log) {
  const uint32_t count = laws::rounds_of(c).ranks;
  DurableMark mark(log);
  for (uint32_t rank = 0; rank < count; ++rank) {
    const fs::path own = laws::folder_of_rank(c, root, rank);
    laws::tier_folders(c, own);
    io::sync_folder(own);
  }
  io::sync_folder(root);
  if (count == 1) return train_and_commit(root, c, nullptr, mark);
  const std::unique_ptr<testing::RankWorld> world = laws::make_law_world(c);
  for (const std::string& failure : testing::on_every_rank(*world, [&](Communicator& rank) {
         train_and_commit(laws::folder_of_rank(c, root, rank.rank()), c, &rank, mark);
       }))
    EXPECT_EQ(failure, "");
}

// The step of the last commit that had ended; 0 where none had.
uint64_t durable_step(const CutCase& cut) {
  return cut.marked.empty() ? 0 : std::stoull(cut.marked);
}

// The strides between the disks that are looked at: those without a commit that had ended, which a sanitizer
// looks at less often, and those with one. The number of either differs from run to run.
std::array<uint64_t, 2> strides_of(const std::vector<power_cut::DiskEvent>& events, uint64_t seed) {
  std::array<uint64_t, 2> disks = {0, 0};
  power_cut::for_each_cut(events, seed, kDisksOfAMoment,
                          [&](const CutCase& cut, const CutDisk&) { ++disks[durable_step(cut) > 0]; });
  const uint64_t stride = 1 + events.size() / kLookedAt;
  return {std::clamp<uint64_t>(disks[0] / kLeastFresh, 1, stride * testing::kOneIn),
          std::clamp<uint64_t>(disks[1] / kLeastDurable, 1, stride)};
}

// Cuts the power at every moment of a training, of all ranks at once, and goes on from what is left.
void expect_kept_at_every_cut(const Combination& c, size_t number) {
  SCOPED_TRACE(laws::describe(c));
  const laws::StatesByStep expected = laws::states_by_step(c, kSteps);
  const ScratchFolder folder;
  DiskLog log(folder.path());
  train_all(folder.path(), c, log);
  const std::vector<power_cut::DiskEvent> events = log.stop();
  const uint64_t seed = 20260109 + number;
  const std::array<uint64_t, 2> strides = strides_of(events, seed);
  uint64_t resumed = 0, fresh = 0;
  std::array<uint64_t, 2> disks = {number, number};  // without a commit that had ended, and with one
  power_cut::for_each_cut(events, seed, kDisksOfAMoment, [&](const CutCase& cut, const CutDisk& disk) {
    const uint64_t durable = durable_step(cut);
    const bool has_commit = durable > 0;
    // The first failure says enough.
    if (disks[has_commit]++ % strides[has_commit] != 0 || ::testing::Test::HasFailure()) return;
    SCOPED_TRACE(cut.words);
    ASSERT_NO_THROW((laws::expect_gone_on_from(c, disk(), expected, durable, false) ? resumed : fresh)++);
  });
  EXPECT_GT(resumed, 10);
  if (laws::level_of(c, laws::kBegins) == "anew") {
    EXPECT_GT(fresh, 10 / testing::kOneIn);
  }
}

// Of so many combinations of a list one is tried.
constexpr size_t kEvery = testing::kSanitized ? 4 : 2;

class CommitPowerCut : public ::testing::TestWithParam<size_t> {};

TEST_P(CommitPowerCut, IsTakenUpFromTheLastCommitOrALaterOneAndGoesOnToTheSameBits) {
  for (const size_t number : laws::part_of_list(GetParam(), combinations().size(), kEvery))
    expect_kept_at_every_cut(combinations()[number], number);
}

TEST_P(CommitPowerCut, IsTakenUpFromTheLastCommitOfAllRanksOrALaterOneAndGoesOnToTheSameBits) {
  for (const size_t number : laws::part_of_list(GetParam(), combinations_of_ranks().size(), kEvery))
    expect_kept_at_every_cut(combinations_of_ranks()[number], number);
}

INSTANTIATE_TEST_SUITE_P(Parts, CommitPowerCut, ::testing::Range(size_t{0}, laws::kParts));

}  // namespace
}  // namespace terrace::commit_power_cut_test
