// What a save leaves on the disk when it succeeds, when it fails, and when the job dies in the middle of it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include <terrace/runtime/checkpoint/internal/save_steps.h>

#include "runtime/checkpoint/checkpoint_rig.h"
#include "support/enum_values.h"

namespace terrace::save_test {
namespace {

using namespace checkpoint_tests;
using checkpoint::SaveHooks;
using checkpoint::SaveMoment;

RigOptions small_with_frozen() {
  RigOptions options;
  options.unused_columns = 100;
  options.with_frozen = true;
  return options;
}

std::string_view name_of(SaveMoment moment) {
  return testing::enumerator_names<SaveMoment>()[static_cast<size_t>(moment)];
}

// The folder as a job that dies at each moment of the save leaves it: copies below `copies`.
std::map<SaveMoment, fs::path> save_and_copy_at_every_moment(TrainingRig& rig, const fs::path& folder,
                                                             uint64_t step, bool can_exchange,
                                                             const fs::path& copies) {
  std::map<SaveMoment, fs::path> taken;
  const auto copy = [&](SaveMoment moment) {
    const fs::path target = copies / std::string(name_of(moment));
    fs::create_directories(target);
    fs::copy(folder, target, fs::copy_options::recursive);
    taken[moment] = target;
  };
  checkpoint::save_checkpoint({folder, rig.log}, rig.info(step), rig.space, *rig.offloader, rig.log,
                              {can_exchange, copy});
  return taken;
}

TEST(CheckpointSave, LeavesTheCheckpointBeforeItWhereverTheJobDies) {
  const ScratchFolder folder, copies;
  TrainingRig rig(small_with_frozen());
  rig.initialise().train(1, 1).save(folder.path(), 1);
  const std::vector<std::byte> at_one = rig.state();
  rig.train(2, 2);
  const std::vector<std::byte> at_two = rig.state();
  const auto taken = save_and_copy_at_every_moment(rig, folder.path(), 2, true, copies.path());
  EXPECT_EQ(taken.size(), 8u);  // all but old_moved_away
  for (const auto& [moment, copy] : taken) {
    SCOPED_TRACE(name_of(moment));
    const bool newer = moment >= SaveMoment::in_place;
    TrainingRig resumed(small_with_frozen());
    EXPECT_EQ(resumed.load(copy).step, newer ? 2u : 1u);
    EXPECT_TRUE(resumed.state() == (newer ? at_two : at_one));
    if (!newer) resumed.train(2, 2);
    resumed.save(copy, 2);
    EXPECT_THAT(hidden_names(copy), ::testing::IsEmpty());
    TrainingRig again(small_with_frozen());
    EXPECT_EQ(again.load(copy).step, 2u);
    EXPECT_TRUE(again.state() == at_two);
  }
}

// Killed between the two names of a checkpoint: readers and the next job find it all the same. One of the
// same step from before, that was not replaced yet, is not taken for it.
TEST(CheckpointSave, IsTheLatestFromTheMomentOnWhenItHasItsName) {
  for (const uint64_t step : {uint64_t{1}, uint64_t{2}}) {
    SCOPED_TRACE(step);
    const ScratchFolder folder, copies;
    TrainingRig rig(small_with_frozen());
    rig.initialise();
    rig.run_id = kRun + 1;
    rig.save(folder.path(), 2);
    if (step == 2) rig.save(folder.path(), 1);  // which is the latest now
    rig.run_id = kRun;
    const auto taken = save_and_copy_at_every_moment(rig, folder.path(), step, true, copies.path());
    for (const auto& [moment, copy] : taken) {
      SCOPED_TRACE(name_of(moment));
      const uint64_t before = step == 2 ? 1 : 2;
      const bool newer = moment >= SaveMoment::in_place;
      EXPECT_EQ(read_checkpoint_info(copy).step, newer ? step : before);
      const CheckpointFolder next(copy, rig.log);
      EXPECT_THAT(hidden_names(copy), ::testing::IsEmpty());
      EXPECT_EQ(read_checkpoint_info(copy).step, newer ? step : before);
      EXPECT_EQ(why_not_saved(next, kRun, step).empty(), newer);
    }
  }
}

class CheckpointReplaced : public ::testing::TestWithParam<bool> {};

TEST_P(CheckpointReplaced, IsThereInOneVersionOrTheOtherWhereverTheJobDies) {
  const bool can_exchange = GetParam();
  const ScratchFolder folder, copies;
  TrainingRig rig(small_with_frozen());
  rig.initialise().train(1, 1).save(folder.path(), 7);
  const std::vector<std::byte> old_state = rig.state();
  rig.train(2, 2);
  const std::vector<std::byte> new_state = rig.state();
  const auto taken = save_and_copy_at_every_moment(rig, folder.path(), 7, can_exchange, copies.path());
  EXPECT_EQ(taken.size(), can_exchange ? 8u : 9u);
  for (const auto& [moment, copy] : taken) {
    SCOPED_TRACE(name_of(moment));
    const bool newer = moment >= SaveMoment::in_place;
    TrainingRig resumed(small_with_frozen());
    for (const fs::path& asked : {copy, copy / "step-00000007"}) {
      EXPECT_EQ(resumed.load(asked).step, 7u);
      EXPECT_TRUE(resumed.state() == (newer ? new_state : old_state));
    }
    resumed.train(2, 2).save(copy, 8);  // brings the folder in order
    EXPECT_THAT(hidden_names(copy), ::testing::IsEmpty());
    TrainingRig again(small_with_frozen());
    again.load(copy / "step-00000007");
    EXPECT_TRUE(again.state() == (newer ? new_state : old_state));
  }
  EXPECT_THAT(hidden_names(folder.path()), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointReplaced, ::testing::Bool(), [](const auto& each) {
  return each.param ? "WithExchangedNames" : "WithTwoRenames";
});

TEST(CheckpointSave, RemovesWhatDeadJobsLeftAndSaysSo) {
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().save(folder.path(), 1);
  const fs::path partial = folder.path() / ".step-00000002.partial";
  fs::create_directory(partial);
  write_text(partial / "states.bin", std::string(5000, 'x'));
  fs::create_directory(folder.path() / ".step-00000001.replaced");
  const std::vector<std::string> kept = {".mine.partial", ".step-2.partial", "step-00000002.partial",
                                         "notes.txt"};
  for (const std::string& name : kept) write_text(folder.path() / name, "not a checkpoint's");
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  rig.save(folder.path(), 3);
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(folder.path() / ".step-00000001.replaced"));
  EXPECT_TRUE(rig.has_logged("removing .step-00000002.partial (4.88 KiB)"));
  EXPECT_TRUE(rig.has_logged("removing .step-00000001.replaced"));
  for (const std::string& name : kept) EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
}

TEST(CheckpointSave, KeepsItsFilesFromOtherUsers) {
  const ScratchFolder folder;
  const mode_t before = umask(0);
  TrainingRig rig(small_with_frozen());
  const fs::path path = rig.initialise().save(folder.path() / "run", 1);
  umask(before);
  const auto mode = [](const fs::path& each) {
    struct stat status {};
    EXPECT_EQ(stat(each.c_str(), &status), 0) << each;
    return status.st_mode & 07777;
  };
  EXPECT_EQ(mode(path.parent_path()), 0700u);
  EXPECT_EQ(mode(path), 0700u);
  for (const char* file : {"states.bin", "frozen.bin", "manifest.json"})
    EXPECT_EQ(mode(path / file), 0600u) << file;
  EXPECT_EQ(mode(path.parent_path() / "latest"), 0600u);
}

TEST(CheckpointSave, RefusesAFolderInWhichAnotherJobIsSaving) {
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().save(folder.path(), 1);
  const int other = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(other, 0);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  expect_error(ErrorKind::io, {folder.path().string(), "a job that runs"},
               [&] { rig.save(folder.path(), 2); });
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  close(other);
  rig.save(folder.path(), 2);
}

TEST(CheckpointSave, RefusesAPathThatIsNoFolder) {
  const ScratchFolder folder;
  write_text(folder.path() / "file", "");
  write_text(folder.path() / "step-00000003", "");
  TrainingRig rig(small_with_frozen());
  rig.initialise();
  for (const char* below : {"file", "file/run", "file/run/deeper"})
    expect_error(ErrorKind::io, {"file"}, [&] { rig.save(folder.path() / below, 1); });
  expect_error(ErrorKind::config, {"step-00000003", "not a folder"}, [&] { rig.save(folder.path(), 3); });
  EXPECT_THAT(hidden_names(folder.path()), ::testing::IsEmpty());
}

TEST(CheckpointSave, RefusesAFolderThatMayOnlyBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write to every folder";
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().save(folder.path(), 1);
  chmod(folder.path().c_str(), 0500);
  expect_error(ErrorKind::io, {folder.path().string(), "EACCES"}, [&] { rig.save(folder.path(), 2); });
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  chmod(folder.path().c_str(), 0700);
}

TEST(CheckpointSave, RefusesADiskThatIsTooSmallAndLeavesItAsItWas) {
  const SmallFileSystem disk("6m");
  if (!disk.refusal().empty()) GTEST_SKIP() << "cannot mount a small file system: " << disk.refusal();
  const fs::path folder = disk.path() / "run";
  TrainingRig rig(RigOptions{});  // 4.2 MiB
  rig.initialise().save(folder, 1);
  const std::vector<std::byte> at_one = rig.state();
  rig.train(2, 2);
  for (const uint64_t step : {2, 1})
    expect_error(ErrorKind::capacity, {folder.string(), "free", "older"}, [&] { rig.save(folder, step); });
  EXPECT_THAT(hidden_names(folder), ::testing::IsEmpty());
  rig.load(folder);
  EXPECT_TRUE(rig.state() == at_one);
}

TEST(CheckpointSave, FindsRoomThatADeadJobHadTaken) {
  const SmallFileSystem disk("6m");
  if (!disk.refusal().empty()) GTEST_SKIP() << "cannot mount a small file system: " << disk.refusal();
  fs::create_directory(disk.path() / ".step-00000001.partial");
  write_text(disk.path() / ".step-00000001.partial" / "states.bin", std::string(5 * kMiB, 'x'));
  TrainingRig rig(RigOptions{});
  EXPECT_NO_THROW(rig.initialise().save(disk.path(), 1));
}

// The disk fills up while the checkpoint is written, by somebody else's doing.
TEST(CheckpointSave, RemovesItsPartWhenTheDiskFillsUpMeanwhile) {
  const SmallFileSystem disk("8m");
  if (!disk.refusal().empty()) GTEST_SKIP() << "cannot mount a small file system: " << disk.refusal();
  const fs::path folder = disk.path() / "run";
  TrainingRig rig(small_with_frozen());
  rig.initialise().save(folder, 1);
  for (const SaveMoment full_at :
       {SaveMoment::folder_made, SaveMoment::states_written, SaveMoment::frozen_written}) {
    SCOPED_TRACE(name_of(full_at));
    const auto fill = [&](SaveMoment moment) {
      if (moment != full_at) return;
      std::ofstream filler(disk.path() / "filler", std::ios::binary);
      while (filler.write(std::string(4096, 'x').data(), 4096).flush()) {
      }
    };
    try {
      checkpoint::save_checkpoint({folder, rig.log}, rig.info(2), rig.space, *rig.offloader, rig.log,
                                  {true, fill});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("ENOSPC"), std::string::npos) << error.what();
    }
    fs::remove(disk.path() / "filler");
    EXPECT_THAT(hidden_names(folder), ::testing::IsEmpty());
    EXPECT_EQ(read_checkpoint_info(folder).step, 1u);
  }
}

TEST(CheckpointSave, SaysThatOnlyTheNameOfTheLatestIsMissing) {
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().save(folder.path(), 1);
  const CheckpointFolder saves(folder.path(), rig.log);
  fs::create_directory(folder.path() / "latest.new");
  write_text(folder.path() / "latest.new" / "in_the_way", "");
  expect_error(ErrorKind::io, {"latest", "complete", "step-00000002"},
               [&] { save_checkpoint(saves, rig.info(2), rig.space, *rig.offloader, rig.log); });
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  EXPECT_EQ(read_checkpoint_info(folder.path() / "step-00000002").step, 2u);
}

}  // namespace
}  // namespace terrace::save_test
