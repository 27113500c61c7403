// Which checkpoints a run goes on from and which are removed, and what becomes of a trainer that met a
// damaged one.
#include <algorithm>

#include <terrace/runtime/checkpoint/inventory.h>

#include "runtime/checkpoint/checkpoint_rig.h"
#include "support/without_permission.h"

namespace terrace::retention_test {
namespace {

using namespace checkpoint_tests;

std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.filename().string());
  return names;
}

std::vector<std::string> steps_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

class CheckpointRetention : public ::testing::Test {
 protected:
  CheckpointRetention() : rig_(RigOptions{.unused_columns = 50}) { rig_.initialise(); }
  void save_steps(std::initializer_list<uint64_t> steps) {
    for (const uint64_t step : steps) rig_.save(folder(), step);
  }
  const fs::path& folder() const { return folder_.path(); }

  ScratchFolder folder_;
  TrainingRig rig_;
};

TEST_F(CheckpointRetention, KeepsTheNewestAndRemovesTheOthers) {
  save_steps({1, 2, 3, 4, 5});
  remove_older_checkpoints({folder(), rig_.log}, kRun, 5, 2, rig_.log);
  EXPECT_EQ(steps_in(folder()), (Names{"step-00000004", "step-00000005"}));
  EXPECT_EQ(read_checkpoint_info(folder()).step, 5u);
  EXPECT_TRUE(rig_.has_logged("step-00000003"));
  remove_older_checkpoints({folder(), rig_.log}, kRun, 5, 2, rig_.log);
  remove_older_checkpoints({folder(), rig_.log}, kRun, 5, 10, rig_.log);
  EXPECT_EQ(steps_in(folder()), (Names{"step-00000004", "step-00000005"}));
  remove_older_checkpoints({folder(), rig_.log}, kRun, 5, 1, rig_.log);
  EXPECT_EQ(steps_in(folder()), (Names{"step-00000005"}));
}

// The newest is not passed over for an older one, and no list says that it is damaged.
TEST_F(CheckpointRetention, PassesNothingOverThatCannotBeOpened) {
  save_steps({1, 2});
  for (const char* const locked : {"step-00000002", "step-00000002/manifest.json", "latest"}) {
    testing::lock(folder(), folder() / locked);
    const testing::WithoutPermission nobody;
    const bool is_found = std::string(locked).ends_with("manifest.json");  // and cannot be read later
    if (is_found) {
      EXPECT_EQ(names_of(checkpoints_to_resume_from(folder())), (Names{"step-00000002", "step-00000001"}));
    } else {
      expect_error(ErrorKind::io, {locked, "EACCES"}, [&] { checkpoints_to_resume_from(folder()); });
    }
    expect_error(ErrorKind::io, {locked, "EACCES"}, [&] { list_checkpoints(folder()); });
  }
}

TEST_F(CheckpointRetention, LeavesLaterStepsAndStrangersAlone) {
  save_steps({2, 9, 3});
  fs::create_directory(folder() / "notes");
  fs::create_directory(folder() / "step-1");
  fs::create_directory(folder() / "step-00000001");  // no checkpoint is in it
  remove_older_checkpoints({folder(), rig_.log}, kRun, 3, 1, rig_.log);
  EXPECT_EQ(steps_in(folder()),
            (Names{"notes", "step-00000001", "step-00000003", "step-00000009", "step-1"}));
}

TEST_F(CheckpointRetention, CountsAndRemovesThoseOfItsOwnRunAlone) {
  save_steps({1, 3});
  rig_.run_id = kRun + 1;
  save_steps({2, 4});
  rig_.run_id = 0;  // of before runs had a name
  save_steps({5});
  rig_.run_id = kRun;
  save_steps({6, 7});
  remove_older_checkpoints({folder(), rig_.log}, kRun, 7, 2, rig_.log);
  EXPECT_EQ(steps_in(folder()),
            (Names{"step-00000002", "step-00000004", "step-00000005", "step-00000006", "step-00000007"}));
}

TEST_F(CheckpointRetention, LeavesACheckpointAloneThatHoldsWhatNoSaveMade) {
  save_steps({1, 2, 3});
  write_text(folder() / "step-00000001" / "notes.txt", "mine");
  remove_older_checkpoints({folder(), rig_.log}, kRun, 3, 1, rig_.log);
  EXPECT_EQ(steps_in(folder()), (Names{"step-00000001", "step-00000003"}));
  EXPECT_TRUE(rig_.has_logged("notes.txt"));
}

// Training and the retention of the same run go on while a checkpoint is written.
TEST_F(CheckpointRetention, GoesOnWhileTheRunHoldsItsFolder) {
  const CheckpointFolder mine(folder(), rig_.log);
  for (const uint64_t step : {1, 2})
    save_checkpoint(mine, rig_.info(step), rig_.space, *rig_.offloader, rig_.log);
  remove_older_checkpoints(mine, kRun, 2, 1, rig_.log);
  EXPECT_EQ(steps_in(folder()), (Names{"step-00000002"}));
  EXPECT_EQ(why_not_saved(mine, kRun, 2), "");
  EXPECT_NE(why_not_saved(mine, kRun + 1, 2), "");
  EXPECT_NE(why_not_saved(mine, kRun, 1), "");
  fs::resize_file(folder() / "step-00000002" / "states.bin", 5);
  EXPECT_NE(why_not_saved(mine, kRun, 2), "");
  expect_error(ErrorKind::io, {folder().string(), "a job that runs"}, [&] { rig_.save(folder(), 3); });
}

TEST_F(CheckpointRetention, RefusesACheckpointUnderTheNameOfAnotherStep) {
  save_steps({1, 2});
  fs::remove_all(folder() / "step-00000002");
  fs::rename(folder() / "step-00000001", folder() / "step-00000002");
  expect_error(ErrorKind::corrupt, {"step-00000002", "step 1"}, [&] { read_checkpoint_info(folder()); });
}

TEST_F(CheckpointRetention, TakesUpTheLatestAndThenThoseBeforeIt) {
  EXPECT_TRUE(checkpoints_to_resume_from(folder()).empty());
  EXPECT_TRUE(checkpoints_to_resume_from(folder() / "nowhere").empty());
  save_steps({2, 9, 4, 3});
  EXPECT_EQ(names_of(checkpoints_to_resume_from(folder())), (Names{"step-00000003", "step-00000002"}));
  write_text(folder() / "latest", "step-00000007\n");
  EXPECT_EQ(names_of(checkpoints_to_resume_from(folder())),
            (Names{"step-00000009", "step-00000004", "step-00000003", "step-00000002"}));
}

// The damage shows when most of the state has been taken over already.
TEST_F(CheckpointRetention, AnEarlierCheckpointLoadsAfterADamagedOne) {
  for (const Placement placement : {Placement::cpu, Placement::nvme}) {
    SCOPED_TRACE(name_of(placement));
    const ScratchFolder scratch;
    const RigOptions options{.parameters = placement, .states = placement, .with_frozen = true};
    TrainingRig rig(options);
    rig.initialise().train(1, 1).save(scratch.path(), 1);
    const std::vector<std::byte> at_one = rig.state();
    const fs::path newer = rig.train(2, 2).save(scratch.path(), 2);
    std::string bytes = text_of(newer / "states.bin");
    bytes[bytes.size() - 100] ^= 1;
    write_text(newer / "states.bin", bytes);

    TrainingRig resumed(options);
    const std::vector<fs::path> candidates = checkpoints_to_resume_from(scratch.path());
    ASSERT_EQ(candidates.size(), 2u);
    expect_error(ErrorKind::corrupt, {"states.bin"}, [&] { resumed.load(candidates[0]); });
    EXPECT_EQ(resumed.load(candidates[1]).step, 1u);
    EXPECT_TRUE(resumed.state() == at_one);
  }
}

}  // namespace
}  // namespace terrace::retention_test
