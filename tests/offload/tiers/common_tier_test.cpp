#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/tiers/common_tier.h>

#include "comm/thread_world.h"
#include "support/rank_threads.h"
#include "support/scratch_folder.h"

namespace terrace::common_tier_test {
namespace {

struct LeftCommit {
  uint64_t number;
  uint64_t agreed = 0;
  std::string state = "step 7";
  StateShard shard = {};  // by default the right one of two
  bool retained = false;
};

class CommonTierTest : public ::testing::Test {
 protected:
  // What a dead rank of two has left. No commit: its folders are those of a run that has begun.
  void leave(uint32_t rank, const std::vector<LeftCommit>& commits, const SpaceId& set) {
    TierSpace space({.paths = {{paths[rank].path()}}, .id = set}, log);
    for (const LeftCommit& left : commits) {
      TierManifest manifest;
      manifest.space = set, manifest.commit = left.number, manifest.info = left.state;
      manifest.version = 4;
      manifest.shard = left.shard.count > 1 ? left.shard : StateShard{rank, 2, left.agreed};
      bool may_be_there = false;
      space.write_commit(manifest, may_be_there);
      if (left.retained) space.retain_commit(left.number);
    }
    space.keep_files(true);
  }
  void leave(uint32_t rank, const std::vector<LeftCommit>& commits) { leave(rank, commits, id); }

  // What both ranks find together, and what one process finds that sees both.
  CommonTier find() {
    ThreadWorld world({.ranks = 2});
    std::vector<CommonTier> found(2);
    for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
           const std::vector<std::filesystem::path> own = {paths[rank.rank()].path()};
           found[rank.rank()] = common_tier(own, rank);
         }))
      EXPECT_EQ(failure, "");
    EXPECT_EQ(found[0].commit, found[1].commit);
    EXPECT_EQ(found[0].trouble, found[1].trouble);
    const std::vector<ShardPaths> shards = {{paths[0].path()}, {paths[1].path()}};
    EXPECT_EQ(common_tier(shards).commit, found[0].commit);
    EXPECT_EQ(common_tier(shards).has_remains, found[0].has_remains);
    return found[0];
  }

  std::vector<ScratchFolder> paths = std::vector<ScratchFolder>(2);
  const SpaceId id = draw_space_id();
  MemoryLog log;
};

TEST_F(CommonTierTest, IsTheNewestCommitThatAllRanksHave) {
  leave(0, {{4, 3}, {5, 4}});
  leave(1, {{4, 3}});
  const CommonTier common = find();
  EXPECT_EQ(common.commit, 4u);
  EXPECT_TRUE(common.has_commits);
  EXPECT_FALSE(common.is_single);
  EXPECT_EQ(common.least_number, 6u) << "the number of a commit that is given up is not used again";
}

TEST_F(CommonTierTest, NamesTheCommitsThatAllHave) {
  leave(0, {{2, 1, "step 3", {}, true}, {4, 2, "step 5", {}, true}, {6, 4}});
  leave(1, {{2, 1, "step 3", {}, true}, {4, 2, "step 5", {}, true}, {6, 4}});
  EXPECT_EQ(find().whole, (std::vector<uint64_t>{2, 4, 6}));
}

TEST_F(CommonTierTest, IsRetainedWhereOneRankHasRetainedIt) {
  leave(0, {{4, 3, "step 7", {}, true}});
  leave(1, {{4, 3}});
  EXPECT_EQ(find().commit, 4u);
  EXPECT_TRUE(find().is_retained);
  EXPECT_FALSE(find().is_single);
}

TEST_F(CommonTierTest, NothingIsLostWithAFirstCommitThatWasNeverWhole) {
  leave(0, {{1}});
  leave(1, {});
  const CommonTier common = find();
  EXPECT_EQ(common.commit, 0u);
  EXPECT_TRUE(common.has_remains);
  EXPECT_FALSE(common.has_commits);
  EXPECT_EQ(common.least_number, 2u);
}

TEST_F(CommonTierTest, NoEarlierCommitTakesThePlaceOfADamagedOne) {
  const LeftCommit retained{3, 2, "step 6", {}, true};
  leave(0, {retained, {4, 3}});
  leave(1, {retained, {4, 3}});
  EXPECT_EQ(find().commit, 4u);
  const auto manifest = paths[1].path() / "terrace-tier/commit-0000000000000004.manifest";
  std::filesystem::resize_file(manifest, 40);
  EXPECT_EQ(find().commit, 0u);
  EXPECT_NE(find().trouble.find("rank 1: "), std::string::npos) << find().trouble;
  EXPECT_NE(find().trouble.find(manifest.string()), std::string::npos) << find().trouble;
}

TEST_F(CommonTierTest, NoEarlierCommitTakesThePlaceOfALostOne) {
  const LeftCommit retained{2, 1, "step 6", {}, true};
  leave(0, {retained, {4, 3}});
  leave(1, {retained});
  EXPECT_EQ(find().commit, 0u);
  EXPECT_NE(find().trouble.find("all ranks had commit 3"), std::string::npos) << find().trouble;
}

TEST_F(CommonTierTest, ALostShardIsNamed) {
  leave(0, {{5, 4}});
  leave(1, {});
  const CommonTier common = find();
  EXPECT_EQ(common.commit, 0u);
  EXPECT_TRUE(common.has_commits);
  EXPECT_FALSE(common.has_remains);
  EXPECT_NE(common.trouble.find("rank 1 has no part of commit 5"), std::string::npos) << common.trouble;
}

TEST_F(CommonTierTest, AShardWithoutAnyFolderIsNamedThoughTheCommitWasTheFirst) {
  leave(0, {{1}});
  const CommonTier common = find();
  EXPECT_TRUE(common.has_commits);
  EXPECT_NE(common.trouble.find("rank 1"), std::string::npos) << common.trouble;
}

TEST_F(CommonTierTest, ShardsOfTwoStatesAreNone) {
  leave(0, {{5, 4, "step 7"}});
  leave(1, {{5, 4, "step 8"}});
  CommonTier common = find();
  EXPECT_EQ(common.commit, 0u);
  EXPECT_NE(common.trouble.find("of another state"), std::string::npos) << common.trouble;
}

TEST_F(CommonTierTest, ShardsOfTwoRunsAreNone) {
  leave(0, {{5, 4}});
  leave(1, {{5, 4}}, draw_space_id());
  EXPECT_EQ(find().commit, 0u);
  EXPECT_NE(find().trouble.find("of another state"), std::string::npos) << find().trouble;
}

TEST_F(CommonTierTest, ShardsInEachOthersFoldersAreNone) {
  leave(0, {{5, 4, "step 7", {1, 2, 4}}});
  leave(1, {{5, 4, "step 7", {0, 2, 4}}});
  EXPECT_EQ(find().commit, 0u);
  EXPECT_NE(find().trouble.find("what rank 0 has is shard 1 of 2"), std::string::npos) << find().trouble;
}

}  // namespace
}  // namespace terrace::common_tier_test
