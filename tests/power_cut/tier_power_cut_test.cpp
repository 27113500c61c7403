// Law 3 for the nvme tier: whatever the disks hold after the power went, the last commit whose commit had
// returned is there, or a later one, every block of it as it was, and work goes on from it. Over two paths,
// with writes between snapshot and manifest, a retained commit and its removal; and in the end, when all of
// it is removed, what is left stands in no later run's way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include <terrace/aio/file.h>
#include <terrace/memory/tier/internal/tier_files.h>

#include "memory/tier/block_store_rig.h"
#include "power_cut/cut_power.h"

namespace terrace::tier_power_cut_test {
namespace {

namespace fs = std::filesystem;
using power_cut::CutCase;
using power_cut::CutDisk;
using power_cut::DiskLog;

constexpr uint32_t kChunks = 4;
constexpr uint32_t kBlocks = 3;  // of a chunk, the last one short
constexpr uint64_t kRetained = 2;

using Seeds = std::vector<uint64_t>;  // of every block

BlockStoreOptions store_options() {
  BlockStoreOptions options{.name = "records",
                            .block_bytes = BlockStoreRig::kBlock,
                            .chunk_bytes = std::vector<uint64_t>(kChunks, 5 * 4096),
                            .spare_slots = 3 * kChunks * kBlocks};
  options.in_place = false;
  return options;
}

TierSpaceOptions space_options(const fs::path& root, TierStart start) {
  return {.paths = {{root / "a"}, {root / "b"}}, .start = start};
}

void write_some(BlockStoreRig& rig, BlockStore& store, std::mt19937_64& random, bool all, Seeds& seeds) {
  for (uint32_t i = 0; i < kChunks * kBlocks; ++i) {
    if (!all && random() % 2 == 0) continue;
    seeds[i] = random();
    rig.write(store, ChunkId{i / kBlocks}, i % kBlocks, seeds[i]);
  }
}

// Commits the blocks as they are now, while training goes on; notes them in `commits`.
BlockStore::Snapshot commit_beside_writes(BlockStoreRig& rig, BlockStore& store, std::mt19937_64& random,
                                          Seeds& seeds, std::map<uint64_t, Seeds>& commits) {
  const uint64_t commit = commits.empty() ? 1 : commits.rbegin()->first + 1;
  write_some(rig, store, random, commit == 1, seeds);
  BlockStore::Snapshot snapshot = store.snapshot();
  commits[commit] = seeds;
  write_some(rig, store, random, false, seeds);
  EXPECT_EQ(rig.commit(store, snapshot, "epoch " + std::to_string(commit)), commit);
  return snapshot;
}

// The blocks of every commit that was committed to `root`, by its number.
std::map<uint64_t, Seeds> run_and_commit(const fs::path& root, DiskLog& log) {
  fs::create_directory(root / "a");
  fs::create_directory(root / "b");
  io::sync_folder(root);
  std::map<uint64_t, Seeds> commits;
  std::mt19937_64 random(7);
  Seeds seeds(kChunks * kBlocks);
  BlockStoreRig rig;
  rig.space = std::make_unique<TierSpace>(space_options(root, TierStart::fresh), rig.log);
  auto store = rig.make_store(store_options());
  BlockStore::Snapshot committed, retained;
  for (uint64_t commit = 1; commit <= 5; ++commit) {
    BlockStore::Snapshot snapshot = commit_beside_writes(rig, *store, random, seeds, commits);
    log.mark(std::to_string(commit));
    committed = std::move(snapshot);
    if (commit == kRetained) {
      rig.space->retain_commit(commit);
      retained = std::move(committed);
    }
    if (commit == 4) {
      rig.space->remove_commit(kRetained);
      retained = {};
    }
  }
  committed = {};
  store.reset();
  log.mark("0");  // nobody wants them any more
  rig.space->keep_files(false);
  rig.space.reset();
  return commits;
}

// The folders as an earlier Terrace leaves them: labels of version 1, and manifests that are called
// "epoch-...".
void give_former_names(const fs::path& root) {
  for (const char* path : {"a", "b"}) {
    const fs::path folder = root / path / tier::kFolderName;
    const fs::path file = folder / tier::kLabelName;
    tier::Label label = tier::parse_label(io::read_whole_file(file, 2 * tier::kLabelBytes), file);
    label.version = 1;
    io::write_file_atomically(file, tier::serialise(label));
    std::vector<fs::path> manifests;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (tier::parse_commit_file_name(entry.path().filename().string())) manifests.push_back(entry.path());
    for (const fs::path& manifest : manifests)
      fs::rename(manifest, folder / ("epoch" + manifest.filename().string().substr(strlen("commit"))));
    io::sync_folder(folder);
  }
}

// Three commits of an earlier Terrace, of which one is retained; another run goes on from the last one and
// makes a fourth.
std::map<uint64_t, Seeds> go_on_from_former_names(const fs::path& root, DiskLog& log) {
  fs::create_directory(root / "a");
  fs::create_directory(root / "b");
  io::sync_folder(root);
  std::map<uint64_t, Seeds> commits;
  std::mt19937_64 random(11);
  Seeds seeds(kChunks * kBlocks);
  {
    BlockStoreRig rig;
    rig.space = std::make_unique<TierSpace>(space_options(root, TierStart::fresh), rig.log);
    const auto store = rig.make_store(store_options());
    std::vector<BlockStore::Snapshot> kept;
    for (uint64_t commit = 1; commit <= 3; ++commit) {
      kept.push_back(commit_beside_writes(rig, *store, random, seeds, commits));
      if (commit == kRetained) rig.space->retain_commit(commit);
    }
    rig.space->keep_files(true);
  }
  give_former_names(root);
  log.mark("3");
  BlockStoreRig rig;
  rig.space = std::make_unique<TierSpace>(space_options(root, TierStart::resume), rig.log);
  const StoreLayout retained = rig.space->read_commit(kRetained).stores.front();
  BlockStore store(*rig.space, store_options(), rig.space->read_commit(3).stores.front(),
                   std::span(&retained, 1), rig.log);
  const BlockStore::Snapshot before = store.snapshot();
  seeds = commits.at(3);
  commit_beside_writes(rig, store, random, seeds, commits);
  log.mark("4");
  return commits;
}

// Opens the newest commit, compares it, and commits another.
void expect_resumed(const fs::path& disk, uint64_t durable, const std::map<uint64_t, Seeds>& commits) {
  BlockStoreRig rig;
  rig.space = std::make_unique<TierSpace>(space_options(disk, TierStart::resume), rig.log);
  ASSERT_FALSE(rig.space->commits().empty());
  const uint64_t newest = rig.space->commits().back().commit;
  EXPECT_GE(newest, durable);
  std::vector<StoreLayout> retained;
  for (const CommitFile& file : rig.space->commits())
    if (file.commit != newest) retained.push_back(rig.space->read_commit(file.commit).stores.front());
  if (durable > kRetained && durable < 4) {
    EXPECT_EQ(retained.size(), 1u);
  }
  const TierManifest manifest = rig.space->read_commit(newest);
  EXPECT_EQ(manifest.info, "epoch " + std::to_string(newest));
  BlockStore store(*rig.space, store_options(), manifest.stores.front(), retained, rig.log);
  store.check();
  const auto expect_blocks = [&](const Seeds& seeds) {
    for (uint32_t i = 0; i < kChunks * kBlocks; ++i)
      EXPECT_TRUE(rig.holds(store, ChunkId{i / kBlocks}, i % kBlocks, seeds[i])) << "block " << i;
  };
  expect_blocks(commits.at(newest));
  if (!retained.empty()) {
    const BlockStore::Snapshot kept = store.take_retained(0);
    for (uint32_t i = 0; i < kChunks * kBlocks; ++i)
      EXPECT_TRUE(rig.holds(store, kept, ChunkId{i / kBlocks}, i % kBlocks, commits.at(kRetained)[i]));
  }
  std::mt19937_64 random(durable);
  Seeds seeds = commits.at(newest);
  const BlockStore::Snapshot before = store.snapshot();
  write_some(rig, store, random, false, seeds);
  const BlockStore::Snapshot snapshot = store.snapshot();
  EXPECT_EQ(rig.commit(store, snapshot), newest + 1);
  expect_blocks(seeds);
}

TEST(TierPowerCut, LeavesTheLastCommitOrALaterOneWhole) {
  const ScratchFolder folder;
  DiskLog log(folder.path());
  const std::map<uint64_t, Seeds> commits = run_and_commit(folder.path(), log);
  uint64_t resumed = 0, fresh = 0;
  power_cut::for_each_cut(log.stop(), 20260108, 4, [&](const CutCase& cut, const CutDisk& disk) {
    SCOPED_TRACE(cut.words);
    if (::testing::Test::HasFailure()) return;  // the first one says enough
    const uint64_t durable = cut.marked.empty() ? 0 : std::stoull(cut.marked);
    const std::vector<fs::path> paths = {disk() / "a", disk() / "b"};
    const FoundTier found = look_at_tier(paths);
    if (found.whole) {
      ++resumed;
      ASSERT_NO_THROW(expect_resumed(disk(), durable, commits));
      return;
    }
    EXPECT_EQ(durable, 0u) << found.trouble;
    if (!fs::exists(paths[0]) || !fs::exists(paths[1])) return;
    ++fresh;
    MemoryLog lines;
    EXPECT_NO_THROW(TierSpace(space_options(disk(), TierStart::fresh), lines)) << "nothing is there to lose";
  });
  EXPECT_GT(resumed, 300u);
  EXPECT_GT(fresh, 50u);
}

// Neither where the labels of an earlier Terrace are replaced, nor where its last commit is superseded.
TEST(TierPowerCut, LeavesACommitWholeThatHasTheNameOfAnEarlierTerrace) {
  const ScratchFolder folder;
  DiskLog log(folder.path());
  const std::map<uint64_t, Seeds> commits = go_on_from_former_names(folder.path(), log);
  uint64_t resumed = 0;
  power_cut::for_each_cut(log.stop(), 20260109, 4, [&](const CutCase& cut, const CutDisk& disk) {
    SCOPED_TRACE(cut.words);
    if (::testing::Test::HasFailure() || cut.marked.empty()) return;
    ++resumed;
    ASSERT_NO_THROW(expect_resumed(disk(), std::stoull(cut.marked), commits));
  });
  EXPECT_GT(resumed, 50u);
}

}  // namespace
}  // namespace terrace::tier_power_cut_test
