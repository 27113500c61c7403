// Folders whose manifests have the names that an earlier Terrace gave them: "epoch-...", beside labels of
// version 1. They are found, gone on from, superseded and removed like those of today.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/tier_verify.h>

#include "block_store_rig.h"
#include "support/expect_error.h"

namespace terrace::former_names_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using Names = std::vector<std::string>;

class FormerNamesTest : public ::testing::Test, public BlockStoreRig {
 protected:
  FormerNamesTest() : BlockStoreRig(2) {}

  std::string folder(size_t place) const { return places[place] / "terrace-tier"; }
  std::string former(uint64_t commit, const char* suffix = ".manifest") const {
    return folder(0) + fmt::format("/epoch-{:016}{}", commit, suffix);
  }
  std::string present(const tier::CommitName& name) const {
    return folder(0) + "/" + tier::commit_file_name(name);
  }
  tier::Label label(size_t place) const {
    const std::string path = folder(place) + "/space";
    return tier::parse_label(io::read_whole_file(path, 2 * tier::kLabelBytes), path);
  }
  void write_label(size_t place, uint32_t version) const {
    tier::Label changed = label(place);
    changed.version = version;
    io::write_file_atomically(folder(place) + "/space", tier::serialise(changed));
  }
  BlockStoreOptions options() const {
    return {.name = "records",
            .block_bytes = kBlock,
            .chunk_bytes = {6 * kBlock},
            .spare_slots = 14,
            .in_place = false};
  }
  // Two commits, whose job is gone: 1 is retained and has 100 in block 0; 2 is the last one and has 200
  // there.
  void leave_two_commits() {
    open_space();
    {
      const auto store = make_store(options());
      for (uint32_t b = 0; b < 6; ++b) write(*store, ChunkId{0}, b, 100 + b);
      const BlockStore::Snapshot first = store->snapshot();
      space->retain_commit(commit(*store, first));
      write(*store, ChunkId{0}, 0, 200);
      commit(*store, store->snapshot());
    }
    space->keep_files(true);
    space.reset();
  }
  void give_former_names() {
    for (size_t place = 0; place < places.size(); ++place) write_label(place, 1);
    fs::rename(present({.commit = 1, .retained = true}), former(1, ".retained"));
    fs::rename(present({.commit = 2}), former(2));
  }
  std::unique_ptr<BlockStore> reopen() {
    const StoreLayout retained = space->read_commit(space->commits().front().commit).stores[0];
    const StoreLayout last = space->read_commit(space->commits().back().commit).stores[0];
    return std::make_unique<BlockStore>(*space, options(), last, std::span(&retained, 1), log);
  }
  FoundTier look() const {
    const fs::path paths[] = {places[0].path(), places[1].path()};
    return look_at_tier(paths);
  }
  Names manifests() const {
    Names names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder(0))) {
      const std::string name = entry.path().filename().string();
      if (tier::parse_commit_file_name(name)) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(FormerNamesTest, AreFoundAndVerifiedAndNothingIsChanged) {
  leave_two_commits();
  give_former_names();
  const FoundTier found = look();
  EXPECT_TRUE(found.whole) << found.trouble;
  ASSERT_EQ(found.commits.size(), 2u);
  EXPECT_EQ(found.commits[0].path, former(1, ".retained"));
  EXPECT_TRUE(found.commits[0].retained);
  EXPECT_EQ(found.commits[1].path, former(2));
  const fs::path paths[] = {places[0].path(), places[1].path()};
  const auto bad = [](const BadTierBlock& block) { ADD_FAILURE() << block.reason.text; };
  EXPECT_EQ(verify_tier_blocks(paths, found.newest, bad), 6 * kBlock);
  expect_error(ErrorKind::config, {folder(0), "commit 1", "OffloadOptions::discard_commits"},
               [&] { open_space(); });
  EXPECT_EQ(label(0).version, 1u);
  EXPECT_EQ(look().commits.size(), 2u);
}

// The next commit takes the place of the last one, by the names of today; what is retained stays until it is
// removed; and at the end nothing is left over.
TEST_F(FormerNamesTest, AreGoneOnFromAndSuperseded) {
  leave_two_commits();
  give_former_names();
  places[0].write("terrace-tier/epoch-0000000000000003.manifest.new", "TRCEPOCH and then nothing");
  open_space(TierStart::resume);
  EXPECT_FALSE(fs::exists(former(3) + ".new"));
  EXPECT_EQ(label(0).version, tier::kLabelVersion);
  EXPECT_EQ(label(1).version, tier::kLabelVersion);
  ASSERT_EQ(space->commits().size(), 2u);
  {
    const auto store = reopen();
    EXPECT_TRUE(holds(*store, ChunkId{0}, 0, 200));
    write(*store, ChunkId{0}, 1, 300);
    EXPECT_EQ(commit(*store, store->snapshot()), 3u);
  }
  EXPECT_EQ(manifests(), (Names{"commit-0000000000000003.manifest", "epoch-0000000000000001.retained"}));
  space.reset();
  open_space(TierStart::resume);  // the names of both
  ASSERT_EQ(space->commits().size(), 2u);
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 1, 300));
  space->remove_commit(1);
  EXPECT_EQ(manifests(), (Names{"commit-0000000000000003.manifest"}));
  space->keep_files(false);
  space.reset();
  EXPECT_TRUE(fs::is_empty(places[0].path()));
  EXPECT_TRUE(fs::is_empty(places[1].path()));
}

TEST_F(FormerNamesTest, BecomeThoseOfTodayWhenACommitIsRetained) {
  leave_two_commits();
  give_former_names();
  open_space(TierStart::resume);
  space->retain_commit(2);
  EXPECT_EQ(manifests(), (Names{"commit-0000000000000002.retained", "epoch-0000000000000001.retained"}));
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 0, 200));
}

TEST_F(FormerNamesTest, AreRemovedByARunThatMayBeginAnew) {
  leave_two_commits();
  give_former_names();
  open_space(TierStart::fresh, true);
  EXPECT_EQ(manifests(), Names());
  space.reset();
  EXPECT_TRUE(fs::is_empty(places[0].path()));
  EXPECT_TRUE(fs::is_empty(places[1].path()));
}

// A newest commit that is damaged is not passed over for what an earlier Terrace left.
TEST_F(FormerNamesTest, AreNotTakenWhereALaterCommitIsDamaged) {
  leave_two_commits();
  give_former_names();
  fs::copy(former(2), present({.commit = 3}));
  expect_error(ErrorKind::corrupt, {present({.commit = 3}), "it is commit 2"},
               [&] { open_space(TierStart::resume); });
  EXPECT_TRUE(fs::exists(former(2)));
  EXPECT_TRUE(fs::exists(present({.commit = 3})));
}

// A Terrace that knows no label of this version would not see its manifests, and says so.
TEST_F(FormerNamesTest, AreThoseOfAnEarlierTerraceWhichRefusesTheLabelsOfToday) {
  leave_two_commits();
  EXPECT_EQ(label(0).version, 2u);
  write_label(0, 3);
  for (const TierStart start : {TierStart::fresh, TierStart::resume}) {
    expect_error(ErrorKind::config, {folder(0) + "/space", "has format version 3, this Terrace knows 2"},
                 [&] { open_space(start, true); });
  }
  EXPECT_EQ(manifests(), (Names{"commit-0000000000000001.retained", "commit-0000000000000002.manifest"}));
}

}  // namespace
}  // namespace terrace::former_names_test
