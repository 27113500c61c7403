// Taking up a commit in place: the state is that of the commit to the last bit, whatever placement and budget
// the next run has, and what is damaged is found before anything is computed with it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"

namespace terrace::commits_resume_test {
namespace {

// Trains to `step`, committing on the way there, and some steps further; then the process "dies".
void train_and_drop(const CommitCase& c, const std::filesystem::path& folder, uint64_t step) {
  CommitRig rig(c, folder);
  rig.offloader->commits().begin(step_info(0));
  for (uint64_t s = 1; s <= step; ++s) {
    rig.step(s);
    if (s == step || s % 2 == 0) rig.offloader->commits().begin(step_info(s));
  }
  rig.offloader->commits().finish();
  rig.step(step + 1);
  rig.step(step + 2);
}

TEST(Resume, GoesOnFromTheCommitWhateverThePlacement) {
  const CommitCase before{.cached_quarters = 2};
  const auto expected = states_without_commits(before, 5);
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const uint32_t quarters : {0u, 1u, 4u}) {
      const ScratchFolder folder;
      train_and_drop(before, folder.path(), 3);
      CommitCase after{
          .parameters = parameters, .cached_quarters = quarters, .engine = io::EngineKind::io_uring};
      after.threads = 1;
      after.start = TierStart::resume;
      CommitRig rig(after, folder.path());
      EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(3));
      EXPECT_GT(rig.offloader->commits().last(), 0u);
      EXPECT_EQ(rig.state(), expected[3]) << name_of(parameters) << " " << quarters;
      rig.step(4);
      rig.offloader->commits().begin(step_info(4));
      rig.step(5);
      EXPECT_EQ(rig.state(), expected[5]) << name_of(parameters) << " " << quarters;
    }
  }
}

TEST(Resume, TakesUpARunAgainAndAgain) {
  CommitCase c{.parameters = Placement::nvme, .with_frozen = true, .cached_quarters = 1};
  const auto expected = states_without_commits(c, 7);
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 1);
  c.start = TierStart::resume;
  for (uint64_t step = 2; step <= 7; ++step) {
    c.cached_quarters = step % 5;
    CommitRig rig(c, folder.path());
    ASSERT_EQ(rig.offloader->commits().taken_up_info(), step_info(step - 1));
    EXPECT_EQ(rig.state(), expected[step - 1]) << step;
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
    rig.offloader->commits().finish();
    if (step < 7) rig.step(step + 1);
  }
}

// What was read from the tier is clean: a commit without a step writes nothing.
TEST(Resume, WritesNothingThatItHasRead) {
  CommitCase c{.parameters = Placement::nvme, .with_frozen = true, .cached_quarters = 4};
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 2);
  c.start = TierStart::resume;
  CommitRig rig(c, folder.path());
  rig.offloader->commits().begin("again");
  rig.offloader->commits().finish();
  EXPECT_EQ(rig.offloader->report().counters().commit_write_bytes, 0u);
}

TEST(Resume, RefusesACommitThatIsCutDifferently) {
  CommitCase c;
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 1);
  c.start = TierStart::resume;
  c.chunk_elements = 2 * kTileElements;
  try {
    CommitRig rig(c, folder.path());
    FAIL() << "blocks were taken for others";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config) << error.what();
  }
  c.chunk_elements = kTileElements;
  CommitRig rig(c, folder.path());  // and the refusal cost nothing
  EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(1));
}

TEST(Resume, RefusesToStartAnewOverACommitUnlessItIsTold) {
  CommitCase c;
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 1);
  EXPECT_THROW(CommitRig(c, folder.path()), Error);
  c.discard = true;
  const auto expected = states_without_commits(c, 1);
  CommitRig rig(c, folder.path());
  EXPECT_EQ(rig.offloader->commits().taken_up_info(), "");
  EXPECT_EQ(rig.state(), expected[0]);
}

// A run that begins over the commit of another, and is dropped after so many steps of its own.
void begin_over(CommitCase c, const std::filesystem::path& folder, uint64_t steps, bool commits) {
  c.discard = true;
  CommitRig rig(c, folder);
  EXPECT_TRUE(rig.offloader->commits().earlier_stays());
  for (uint64_t step = 1; step <= steps; ++step) rig.step(step);
  if (!commits) return;
  rig.offloader->commits().begin(step_info(steps));
  rig.offloader->commits().finish();
  EXPECT_FALSE(rig.offloader->commits().earlier_stays());
}

class BeginOver : public ::testing::TestWithParam<CommitCase> {};

TEST_P(BeginOver, LeavesTheCommitOfBeforeUntilItsFirstCommit) {
  CommitCase c = GetParam();
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 2);
  const auto expected = states_without_commits(c, 3);
  for (const uint64_t steps : {0, 1, 3}) begin_over(c, folder.path(), steps, false);
  c.start = TierStart::resume;
  {
    CommitRig rig(c, folder.path());
    EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(2));
    EXPECT_EQ(rig.state(), expected[2]);
  }
  c.start = TierStart::fresh;
  begin_over(c, folder.path(), 3, true);
  c.start = TierStart::resume;
  CommitRig rig(c, folder.path());
  EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(3));
  EXPECT_EQ(rig.state(), expected[3]);
}

INSTANTIATE_TEST_SUITE_P(
    Resume, BeginOver,
    ::testing::Values(CommitCase{}, CommitCase{.parameters = Placement::nvme, .cached_quarters = 0},
                      CommitCase{.parameters = Placement::none, .mode = UpdateMode::after_backward},
                      CommitCase{.parameters = Placement::nvme, .layout = kCompact},
                      CommitCase{.parameters = Placement::nvme, .layout = kCoded},
                      CommitCase{.cached_quarters = 4, .layout = kCompact, .mode = UpdateMode::next_forward},
                      CommitCase{.mode = UpdateMode::during_backward, .processor_share = 0.5}));

// Frozen parameters have no second place, the chunks of another size other blocks.
TEST(Resume, RemovesTheCommitAtOnceWhereTheNewStateHasNoRoomBesideIt) {
  for (const bool other_chunks : {false, true}) {
    CommitCase c{.parameters = Placement::nvme, .with_frozen = !other_chunks};
    const ScratchFolder folder;
    train_and_drop(c, folder.path(), 1);
    if (other_chunks) c.chunk_elements = 2 * kTileElements;
    c.discard = true;
    CommitRig rig(c, folder.path());
    EXPECT_EQ(rig.offloader->commits().last(), 0u);
    EXPECT_FALSE(rig.offloader->commits().earlier_stays());
  }
}

TEST(Resume, NamesAFlippedByteBeforeItReachesAWeightAndKeepsTheFiles) {
  CommitCase c{.parameters = Placement::nvme, .with_frozen = true};
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 2);
  const std::filesystem::path file = folder.path() / "terrace-tier" / "records.tier";
  uint64_t named = 0;
  const uint64_t size = std::filesystem::file_size(file) - 4096;  // its mark says what the file is
  c.start = TierStart::resume;
  const auto expected = states_without_commits(c, 2);
  for (uint64_t offset = 777; offset < size; offset += RecordLayout{}.tile_bytes()) {
    const auto flip = [&] {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(offset));
      const char value = static_cast<char>(bytes.get() ^ 1);
      bytes.seekp(static_cast<std::streamoff>(offset));
      bytes.put(value);
    };
    flip();
    try {
      CommitRig rig(c, folder.path());
      EXPECT_EQ(rig.state(), expected[2]) << "byte " << offset;  // of a slot that the commit has not
    } catch (const Error& error) {
      ++named;
      EXPECT_EQ(error.kind(), ErrorKind::corrupt);
      EXPECT_NE(std::string(error.what()).find("records.tier"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("chunk"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
    }
    flip();
  }
  CommitRig rig(c, folder.path());
  EXPECT_EQ(rig.state(), expected[2]);
  EXPECT_EQ(named, rig.offloader->state().record_tile_count());
}

TEST(Resume, KeepsRetainedCommitsBesideTheLast) {
  CommitCase c{.retained = 2};
  const ScratchFolder folder;
  const auto manifests = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "terrace-tier"))
      count += entry.path().filename().string().starts_with("commit-") ? 1 : 0;
    return count;
  };
  const auto expected = states_without_commits(c, 9);
  {
    CommitRig rig(c, folder.path());
    for (uint64_t step = 1; step <= 6; ++step) {
      rig.step(step);
      rig.offloader->commits().begin(step_info(step), step % 2 == 0);  // 2, 4, 6
      rig.offloader->commits().finish();
      const size_t retained = std::min<size_t>(step / 2, 2);
      EXPECT_EQ(manifests(), retained + (step % 2 == 0 ? 0 : 1)) << step;
    }
  }
  c.start = TierStart::resume;
  CommitRig rig(c, folder.path());
  for (uint64_t step = 7; step <= 9; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
  }
  rig.offloader->commits().finish();
  EXPECT_EQ(rig.state(), expected[9]);
  EXPECT_EQ(manifests(), 3u);
}

TEST(Resume, MayRetainMoreThanTheRunBefore) {
  CommitCase c{.cached_quarters = 1};
  const auto expected = states_without_commits(c, 9);
  const ScratchFolder folder;
  train_and_drop(c, folder.path(), 1);
  c.start = TierStart::resume;
  c.retained = 3;
  {
    CommitRig rig(c, folder.path());
    for (uint64_t step = 2; step <= 7; ++step) {
      rig.step(step);
      rig.offloader->commits().begin(step_info(step), true);
    }
  }
  // Fewer again: those that are there stay.
  c.retained = 0;
  CommitRig rig(c, folder.path());
  for (uint64_t step = 8; step <= 9; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
  }
  rig.offloader->commits().finish();
  EXPECT_EQ(rig.state(), expected[9]);
}

TEST(Resume, RemovesTheFilesOnlyWhenItIsToldOrNoCommitNeedsThem) {
  const auto files_left = [](bool commit, std::optional<bool> keep) {
    const ScratchFolder folder;
    {
      CommitRig rig({}, folder.path());
      rig.step(1);
      if (commit) rig.offloader->commits().begin(step_info(1));
      if (keep) rig.offloader->commits().keep_tier(*keep);
    }
    return std::filesystem::exists(folder.path() / "terrace-tier" / "records.tier");
  };
  EXPECT_FALSE(files_left(false, std::nullopt));
  EXPECT_FALSE(files_left(false, true));
  EXPECT_TRUE(files_left(true, std::nullopt));
  EXPECT_FALSE(files_left(true, false));
}

}  // namespace
}  // namespace terrace::commits_resume_test
