// Law 3 for checkpoints: whatever the disk holds after the power went, the last checkpoint whose save had
// returned is there, or a later one, whole.
#include <gtest/gtest.h>

#include "power_cut/cut_power.h"
#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::checkpoint_power_cut_test {
namespace {

using namespace checkpoint_tests;
using power_cut::CutCase;
using power_cut::CutDisk;
using power_cut::DiskLog;

struct Saved {
  uint64_t step;
  std::vector<std::byte> state;
};

TEST(CheckpointPowerCut, LeavesTheLastCheckpointOrALaterOneWhole) {
  RigOptions options;
  options.unused_columns = 1;
  options.with_frozen = true;
  const ScratchFolder folder;
  TrainingRig rig(options);
  rig.initialise();
  std::vector<Saved> saved;
  DiskLog log(folder.path());
  for (uint64_t step = 1; step <= 3; ++step) {
    rig.train(step, step);
    saved.push_back({step, rig.state()});
    rig.save(folder.path() / "saved", step);
    log.mark(std::to_string(step));
  }
  remove_older_checkpoints({folder.path() / "saved", rig.log}, kRun, 3, 1, rig.log);
  rig.save(folder.path() / "saved", 3);  // over itself
  TrainingRig resumed(options);
  uint64_t cuts = 0;
  power_cut::for_each_cut(log.stop(), 20260107, 6, [&](const CutCase& cut, const CutDisk& disk) {
    SCOPED_TRACE(cut.words);
    ++cuts;
    const uint64_t durable = cut.marked.empty() ? 0 : std::stoull(cut.marked);
    const fs::path below = disk() / "saved";
    const auto found = fs::exists(below) ? checkpoints_to_resume_from(below) : std::vector<fs::path>();
    if (found.empty()) {
      EXPECT_EQ(durable, 0u);
      return;
    }
    const uint64_t step = resumed.load(found.front()).step;
    EXPECT_GE(step, durable);
    ASSERT_LE(step, saved.size());
    EXPECT_TRUE(resumed.state() == saved[step - 1].state);
  });
  EXPECT_GT(cuts, 200u);
}

}  // namespace
}  // namespace terrace::checkpoint_power_cut_test
