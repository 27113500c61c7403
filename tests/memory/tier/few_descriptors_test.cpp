// Tier folders in a process that has few descriptors to spare: what cannot be opened is an error that says
// so, and never taken for what is not there, damaged or lost.
#include <gtest/gtest.h>

#include <filesystem>

#include <terrace/memory/tier/internal/tier_files.h>

#include "block_store_rig.h"
#include "support/few_descriptors.h"

namespace terrace::few_descriptors_test {
namespace {

namespace fs = std::filesystem;
using testing::FewDescriptors;
using testing::with_few_descriptors;

class FewDescriptorsTest : public ::testing::Test, public BlockStoreRig {
 protected:
  FewDescriptorsTest() : BlockStoreRig(2) {}
  FoundTier look() const {
    const std::vector<fs::path> both = {places[0].path(), places[1].path()};
    return look_at_tier(both);
  }
  // A retained commit and a later one.
  void leave_two_commits() {
    open_space();
    {
      const auto store = make_store({.name = "records",
                                     .block_bytes = kBlock,
                                     .chunk_bytes = {6 * kBlock},
                                     .spare_slots = 8,
                                     .in_place = false});
      for (uint32_t b = 0; b < 6; ++b) write(*store, ChunkId{0}, b, 100 + b);
      const BlockStore::Snapshot first = store->snapshot();
      space->retain_commit(commit(*store, first));
      write(*store, ChunkId{0}, 0, 200);
      commit(*store, store->snapshot());
    }
    space->keep_files(true);
    space.reset();
  }
  void expect_both_commits() const {
    const FoundTier found = look();
    EXPECT_TRUE(found.whole) << found.trouble;
    EXPECT_EQ(found.commits.size(), 2u);
  }
};

TEST_F(FewDescriptorsTest, DoNotMakeACommitLookAbsentOrDamaged) {
  leave_two_commits();
  FoundTier found;
  with_few_descriptors([&] { found = look(); }, [&] { expect_both_commits(); });
  EXPECT_TRUE(found.whole) << found.trouble;
  EXPECT_EQ(found.commits.size(), 2u);
}

TEST_F(FewDescriptorsTest, DoNotLoseARetainedCommitOfARunThatGoesOn) {
  leave_two_commits();
  size_t taken_up = 0;
  with_few_descriptors(
      [&] {
        open_space(TierStart::resume);
        taken_up = space->commits().size();
      },
      [&] {
        space.reset();
        expect_both_commits();
      });
  EXPECT_EQ(taken_up, 2u);
  for (const MemoryLog::Line& line : log.lines())
    EXPECT_EQ(line.text.find("lost"), std::string::npos) << line.text;
}

TEST_F(FewDescriptorsTest, DoNotMakeAFreshStartCallACommitDamaged) {
  leave_two_commits();
  std::string refusal;
  const auto start = [&] {
    try {
      open_space();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      refusal = error.what();
    }
  };
  with_few_descriptors(start, [&] { expect_both_commits(); });
  EXPECT_NE(refusal.find("was written"), std::string::npos) << refusal;
}

TEST_F(FewDescriptorsTest, LeaveNoFolderOfARunThatIsRefused) {
  with_few_descriptors([&] { open_space(); },
                       [&] {
                         space.reset();
                         for (const ScratchFolder& place : places) EXPECT_TRUE(fs::is_empty(place.path()));
                       });
}

}  // namespace
}  // namespace terrace::few_descriptors_test
