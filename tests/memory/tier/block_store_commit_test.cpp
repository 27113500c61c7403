// A store that writes to free slots: snapshots, commits, and what a crash leaves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "block_store_rig.h"

namespace terrace::block_store_commit_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = BlockStoreRig::kBlock;

// Two chunks of three blocks, and one block.
BlockStoreOptions durable(uint64_t spare) {
  return {.name = "records",
          .block_bytes = kBlock,
          .chunk_bytes = {3 * kBlock, 2 * kBlock + 4096, 4096},
          .spare_slots = spare,
          .in_place = false};
}

template <typename Body>
void for_each_block(const BlockStore& store, Body body) {
  uint32_t number = 0;
  for (uint32_t c = 0; c < 3; ++c) {
    for (uint32_t b = 0; b < store.block_count(ChunkId{c}); ++b) body(ChunkId{c}, b, number++);
  }
}

class CommitTest : public ::testing::Test, public BlockStoreRig {
 protected:
  CommitTest() : BlockStoreRig(2) { places.pop_back(); }
  // Block n holds bytes of seed + n.
  void write_all(BlockStore& store, uint64_t seed) {
    for_each_block(store, [&](ChunkId c, uint32_t b, uint32_t n) { write(store, c, b, seed + n); });
  }
  void expect_all(BlockStore& store, uint64_t seed) {
    for_each_block(
        store, [&](ChunkId c, uint32_t b, uint32_t n) { EXPECT_TRUE(holds(store, c, b, seed + n)) << n; });
  }
  void expect_all(BlockStore& store, const BlockStore::Snapshot& snapshot, uint64_t seed) {
    for_each_block(store, [&](ChunkId c, uint32_t b, uint32_t n) {
      EXPECT_TRUE(holds(store, snapshot, c, b, seed + n)) << n;
    });
  }
  std::unique_ptr<BlockStore> reopen(uint64_t spare, std::vector<uint64_t> retained = {}) {
    open_space(TierStart::resume);
    const auto layout = [&](uint64_t commit) { return space->read_commit(commit).stores.at(0); };
    std::vector<StoreLayout> kept;
    for (const uint64_t commit : retained) kept.push_back(layout(commit));
    return std::make_unique<BlockStore>(*space, durable(spare), layout(space->commits().back().commit), kept,
                                        log);
  }
};

TEST_F(CommitTest, ASnapshotStaysAsItWasWhateverIsWritten) {
  const auto store = make_store(durable(7));
  write_all(*store, 100);
  const BlockStore::Snapshot before = store->snapshot();
  write_all(*store, 200);
  expect_all(*store, before, 100);
  expect_all(*store, 200);
  EXPECT_EQ(store->free_slot_count(), 0u);
  store->check();
}

TEST_F(CommitTest, RefusesAWriteOnlyAsLongAsSnapshotsHaveEverySlot) {
  const auto store = make_store(durable(2));
  write_all(*store, 100);
  BlockStore::Snapshot before = store->snapshot();
  write(*store, ChunkId{0}, 0, 1);
  write(*store, ChunkId{0}, 1, 2);
  BlockStore::Write refused;
  EXPECT_FALSE(store->begin_write(ChunkId{0}, 2, pages.memory().first(kBlock), refused));
  store->check();
  EXPECT_TRUE(holds(*store, ChunkId{0}, 2, 102));
  before = {};
  EXPECT_EQ(store->free_slot_count(), 2u);
  write(*store, ChunkId{0}, 2, 3);
  store->check();
}

// What a commit does with a block that is in memory only.
TEST_F(CommitTest, ASnapshotTakesABlockThatIsWrittenForIt) {
  const auto store = make_store(durable(7));
  write_all(*store, 100);
  BlockStore::Snapshot snapshot = store->snapshot();
  const BlockStore::Write write_for_it = write(*store, ChunkId{1}, 2, 55);
  snapshot.adopt(write_for_it);
  write(*store, ChunkId{1}, 2, 66);
  EXPECT_TRUE(holds(*store, snapshot, ChunkId{1}, 2, 55));
  EXPECT_TRUE(holds(*store, ChunkId{1}, 2, 66));
  EXPECT_EQ(store->place(snapshot, ChunkId{1}, 2).offset, write_for_it.to.slot * kBlock);
  EXPECT_EQ(store->place(snapshot, ChunkId{1}, 2).bytes, 4096u);
  store->check();
}

TEST_F(CommitTest, IsWhatACrashLeavesAtAnyMoment) {
  // A job that commits one state, writes another over it in part, and dies.
  engine.reset();  // its threads could hold a lock in the moment of the fork, and the child would wait for it
  const pid_t child = fork();
  make_engine({});
  if (child == 0) {
    open_space();
    const auto store = make_store(durable(8));
    write_all(*store, 100);
    commit(*store, store->snapshot(), "first");
    auto* const committed = new BlockStore::Snapshot(store->snapshot());
    write_all(*store, 200);
    commit(*store, *committed, "second, of the first state still");
    write(*store, ChunkId{0}, 0, 300);
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto store = reopen(8);
  ASSERT_EQ(space->commits().size(), 1u);
  EXPECT_EQ(space->commits()[0].commit, 2u);
  EXPECT_EQ(space->read_commit(2).info, "second, of the first state still");
  expect_all(*store, 100);
  store->check();
  EXPECT_EQ(store->free_slot_count(), 8u);
}

TEST_F(CommitTest, GoesOnWhereTheLastRunEnded) {
  {
    const auto store = make_store(durable(7));
    write_all(*store, 100);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  for (uint64_t round = 1; round <= 3; ++round) {
    {
      const auto store = reopen(7);
      expect_all(*store, 100 * round);
      const BlockStore::Snapshot durable_one = store->snapshot();
      write_all(*store, 100 * (round + 1));
      store->check();
      EXPECT_EQ(commit(*store, store->snapshot()), round + 1);
    }
    space.reset();
  }
}

// The one before goes only when the new one is there.
TEST_F(CommitTest, ReplacesTheCommitBeforeAndNoRetainedOne) {
  const auto store = make_store(durable(14));
  write_all(*store, 100);
  const BlockStore::Snapshot first = store->snapshot();
  space->retain_commit(commit(*store, first));
  write_all(*store, 200);
  commit(*store, store->snapshot());
  write_all(*store, 300);
  commit(*store, store->snapshot());
  ASSERT_EQ(space->commits().size(), 2u);
  EXPECT_EQ(space->commits()[0].commit, 1u);
  EXPECT_TRUE(space->commits()[0].retained);
  EXPECT_EQ(space->commits()[1].commit, 3u);
  EXPECT_FALSE(fs::exists(places[0] / "terrace-tier/commit-0000000000000002.manifest"));
  EXPECT_TRUE(fs::exists(places[0] / "terrace-tier/commit-0000000000000001.retained"));
  expect_all(*store, first, 100);
}

TEST_F(CommitTest, KeepsARetainedCommitThroughARestartUntilItIsDropped) {
  {
    const auto store = make_store(durable(14));
    write_all(*store, 100);
    const BlockStore::Snapshot first = store->snapshot();
    space->retain_commit(commit(*store, first));
    write_all(*store, 200);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  const auto store = reopen(14, {1});
  store->check();
  EXPECT_EQ(store->free_slot_count(), 7u);
  BlockStore::Snapshot first = store->take_retained(0);
  const BlockStore::Snapshot second = store->snapshot();
  write_all(*store, 300);
  expect_all(*store, first, 100);
  expect_all(*store, second, 200);
  EXPECT_EQ(store->free_slot_count(), 0u);
  space->remove_commit(1);
  first = {};
  EXPECT_EQ(store->free_slot_count(), 7u);
  store->check();
}

TEST_F(CommitTest, GetsMoreSpareSlotsWhenTheNextRunWantsThem) {
  {
    const auto store = make_store(durable(3));
    write_all(*store, 100);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  {
    const auto store = reopen(9);
    EXPECT_EQ(store->file_bytes(), 16 * kBlock);
    EXPECT_EQ(store->free_slot_count(), 9u);
    const BlockStore::Snapshot commit = store->snapshot();
    write_all(*store, 200);
    expect_all(*store, commit, 100);
  }
  space.reset();
  const auto store = reopen(0);  // fewer: what is there stays; and the commit is the one that was committed
  EXPECT_EQ(store->file_bytes(), 16 * kBlock);
  expect_all(*store, 100);
}

TEST_F(CommitTest, WritesAgainElsewhereWhenAWriteFailsAndSaysSoOnce) {
  make_engine({{.index = 4, .kind = io::FaultKind::fail, .bytes = 4096, .error = EIO},
               {.index = 5, .kind = io::FaultKind::fail, .error = ENOSPC},
               {.index = 9, .kind = io::FaultKind::fail, .error = EIO}});
  const auto store = make_store(durable(4));  // spare slots are zeroed by one write, of index 0
  write_all(*store, 100);
  expect_all(*store, 100);
  store->check();
  EXPECT_EQ(store->bad_slot_count(), 3u);
  EXPECT_EQ(store->free_slot_count(), 1u);
  const auto warnings = std::ranges::count_if(log.lines(), [](const MemoryLog::Line& line) {
    return line.text.find("set aside") != std::string::npos;
  });
  EXPECT_EQ(warnings, 2);  // one for each reason
}

// A path that fails does not take the next attempt while another one has room.
TEST(BlockStorePaths, AWriteThatFailsGoesToAnotherPath) {
  BlockStoreRig rig(2);
  std::vector<TierPath> paths = rig.paths();
  paths[0].bytes_per_second = 1e9;  // by itself it would be chosen again
  paths[1].bytes_per_second = 1e8;
  rig.space = std::make_unique<TierSpace>(TierSpaceOptions{.paths = paths}, rig.log);
  const auto store = rig.make_store(durable(60));
  rig.make_engine({{.index = 0, .kind = io::FaultKind::fail, .error = EIO}});
  const BlockStore::Write first = rig.write(*store, ChunkId{0}, 0, 1);
  EXPECT_EQ(first.attempts, 2u);
  EXPECT_EQ(first.to.path, 1u);
  EXPECT_NE(rig.log.lines().at(0).text.find(rig.space->folder(0).path()), std::string::npos);
}

TEST_F(CommitTest, GivesUpAfterAFewSlotsAndTheBlockIsWhatItWas) {
  const auto store = make_store(durable(7));
  write_all(*store, 100);
  make_engine({{.index = io::kEveryIndex, .kind = io::FaultKind::fail, .error = EIO}});
  EXPECT_EQ(error_of([&] { write(*store, ChunkId{0}, 1, 7); }).kind(), ErrorKind::io);
  EXPECT_EQ(store->bad_slot_count(), 4u);
  make_engine({});
  expect_all(*store, 100);
  store->check();
}

TEST_F(CommitTest, DoesNotRetryARequestThatMakesNoSense) {
  const auto store = make_store(durable(7));
  make_engine({{.index = 0, .kind = io::FaultKind::fail, .error = EINVAL}});
  EXPECT_EQ(error_of([&] { write(*store, ChunkId{0}, 1, 7); }).kind(), ErrorKind::io);
  EXPECT_EQ(store->bad_slot_count(), 0u);
  EXPECT_EQ(store->free_slot_count(), 14u);
  store->check();
}

TEST_F(CommitTest, RefusesTheStoreOfAnotherModel) {
  {
    const auto store = make_store(durable(7));
    write_all(*store, 100);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  open_space(TierStart::resume);
  BlockStoreOptions other = durable(7);
  other.chunk_bytes[1] += 4096;
  const Error error =
      error_of([&] { BlockStore(*space, other, space->read_commit(1).stores.at(0), {}, log); });
  EXPECT_EQ(error.kind(), ErrorKind::config);
}

TEST_F(CommitTest, ReportsATierFileThatIsNotWhole) {
  {
    const auto store = make_store(durable(7));
    write_all(*store, 100);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  const std::string file = places[0] / "terrace-tier/records.tier";
  const uint64_t size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  EXPECT_EQ(error_of([&] { reopen(7); }).kind(), ErrorKind::corrupt);
  fs::remove(file);
  EXPECT_EQ(error_of([&] { reopen(7); }).kind(), ErrorKind::corrupt);
  EXPECT_TRUE(fs::exists(places[0] / "terrace-tier/commit-0000000000000001.manifest"));
}

// Every byte of every file of a commit, flipped: an error that names a file, or a byte that no commit needs.
TEST_F(CommitTest, ReportsEveryFlippedByteOrDoesNotNeedIt) {
  {
    const auto store = make_store(durable(7));
    write_all(*store, 100);
    const BlockStore::Snapshot first = store->snapshot();
    write(*store, ChunkId{0}, 1, 7);
    commit(*store, first);
    space->keep_files(true);
  }
  space.reset();
  const std::string folder = places[0] / "terrace-tier/";
  std::mt19937_64 random(5);
  std::map<std::string, int> reported;
  for (int flip = 0; flip < 400; ++flip) {
    const char* const names[] = {"space", "commit-0000000000000001.manifest", "records.tier"};
    const std::string name = names[random() % 3];
    const int fd = open((folder + name).c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    const auto at = static_cast<off_t>(random() % fs::file_size(folder + name));
    std::byte byte;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    const std::byte flipped = byte ^ static_cast<std::byte>(1 << random() % 8);
    ASSERT_EQ(pwrite(fd, &flipped, 1, at), 1);
    SCOPED_TRACE(name + " at " + std::to_string(at));
    try {
      const auto store = reopen(7);
      expect_all(*store, 100);
      EXPECT_EQ(name, "records.tier");  // of the others every byte counts
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt) << error.what();
      EXPECT_NE(std::string(error.what()).find(folder.substr(0, folder.size() - 1)), std::string::npos);
      ++reported[name];
    }
    space.reset();
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
  }
  for (const auto& [name, count] : reported) EXPECT_GT(count, 40) << name;
  EXPECT_EQ(reported.size(), 3u);
  expect_all(*reopen(7), 100);
}

}  // namespace
}  // namespace terrace::block_store_commit_test
