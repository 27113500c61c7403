// A store in place on one path: what every store does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "block_store_rig.h"

namespace terrace::block_store_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = BlockStoreRig::kBlock;
constexpr uint64_t kChunk = 5 * 4096;  // two blocks and a half

BlockStoreOptions small_options(bool verify = true) {
  // The second chunk is not in the store, the last one is short.
  return {
      .name = "records", .block_bytes = kBlock, .chunk_bytes = {kChunk, 0, kChunk, 4096}, .verify = verify};
}

class BlockStoreTest : public ::testing::Test, public BlockStoreRig {
 protected:
  BlockStoreTest() { open_space(); }
  std::string file() const { return space->folder(0).path() + "/records.tier"; }
};

TEST_F(BlockStoreTest, IsPrivateAndAsLongAsItsSlotsAndItsMark) {
  const auto store = make_store(small_options());
  EXPECT_EQ(store->block_count(ChunkId{0}), 3u);
  EXPECT_EQ(store->block_count(ChunkId{1}), 0u);
  EXPECT_EQ(store->block_bytes(ChunkId{0}, 2), 4096u);
  EXPECT_EQ(store->file_bytes(), 7 * kBlock);
  struct stat status;
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(status.st_size), 7 * kBlock + TierFolder::kMarkBytes);
  EXPECT_GE(static_cast<uint64_t>(status.st_blocks) * 512, 7 * kBlock);
}

// What the first write of every block reaches is not written before it.
TEST_F(BlockStoreTest, WritesOnceWhatTheFirstWritesDoNotReach) {
  { const auto store = make_store(small_options()); }
  EXPECT_EQ(engine->stats().bytes_written, 0u);
  BlockStoreOptions options = small_options();
  options.in_place = false;
  options.spare_slots = 300;
  const auto store = make_store(options);
  EXPECT_EQ(engine->stats().bytes_written, 300 * kBlock);
  EXPECT_EQ(store->file_bytes(), 307 * kBlock);
  EXPECT_EQ(engine->in_flight(), 0u);
}

TEST_F(BlockStoreTest, GivesBackWhatWasWrittenToEachBlock) {
  const auto store = make_store(small_options());
  const ChunkId chunks[] = {ChunkId{3}, ChunkId{0}, ChunkId{2}};
  for (int round = 0; round < 2; ++round) {
    for (const ChunkId chunk : chunks) {
      for (uint32_t b = 0; b < store->block_count(chunk); ++b)
        write(*store, chunk, b, index_of(chunk) * 10 + b + 100 * static_cast<uint64_t>(round));
    }
    store->check();
    EXPECT_EQ(store->free_slot_count(), 0u);
  }
  for (const ChunkId chunk : chunks) {
    for (uint32_t b = 0; b < store->block_count(chunk); ++b)
      EXPECT_TRUE(holds(*store, chunk, b, index_of(chunk) * 10 + b + 100));
  }
}

TEST_F(BlockStoreTest, StaysInThePlaceOfTheFirstWrite) {
  const auto store = make_store(small_options());
  const StoredBlock first = write(*store, ChunkId{2}, 1, 1).to;
  write(*store, ChunkId{0}, 0, 2);
  const StoredBlock second = write(*store, ChunkId{2}, 1, 3).to;
  EXPECT_EQ(first.slot, second.slot);
  EXPECT_NE(first.checksum, second.checksum);
}

TEST_F(BlockStoreTest, KnowsWhichBlocksWereEverWritten) {
  const auto store = make_store(small_options());
  EXPECT_FALSE(store->written(ChunkId{0}, 1));
  write(*store, ChunkId{0}, 1, 1);
  EXPECT_TRUE(store->written(ChunkId{0}, 1));
  EXPECT_FALSE(store->written(ChunkId{0}, 0));
  EXPECT_FALSE(store->written(ChunkId{2}, 1));
}

TEST_F(BlockStoreTest, FindsAFlippedByteAndNamesItsChunk) {
  const auto store = make_store(small_options());
  write(*store, ChunkId{0}, 0, 1);
  const BlockStore::Write written = write(*store, ChunkId{2}, 1, 5);
  const int fd = open(file().c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const std::byte flipped = written.request.data[77] ^ std::byte{0x10};
  ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(written.request.offset + 77)), 1);
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  EXPECT_TRUE(holds(*store, ChunkId{0}, 0, 1));  // the others are whole
  const Error error = error_of([&] { holds(*store, ChunkId{2}, 1, 5); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  EXPECT_EQ(error.parts().subject.in(Door::cpp), file());
  EXPECT_NE(error.parts().reason.find("chunk 2, offset 8192 (8192 in the file), 8192 bytes"),
            std::string::npos)
      << error.what();
  EXPECT_NE(error.parts().reason.find("expected 0x"), std::string::npos);
}

TEST_F(BlockStoreTest, FindsAWriteThatWasLost) {
  const auto store = make_store(small_options());
  write(*store, ChunkId{0}, 0, 1);
  make_engine({{.index = 0, .kind = io::FaultKind::torn_write, .bytes = 0}});
  write(*store, ChunkId{0}, 0, 2);
  EXPECT_EQ(error_of([&] { holds(*store, ChunkId{0}, 0, 2); }).kind(), ErrorKind::corrupt);
}

TEST_F(BlockStoreTest, ChecksNothingWhenAskedNotTo) {
  const auto store = make_store(small_options(false));
  make_engine({{.index = 0, .kind = io::FaultKind::torn_write, .bytes = 0}});
  write(*store, ChunkId{0}, 0, 1);
  EXPECT_FALSE(holds(*store, ChunkId{0}, 0, 1));
}

TEST_F(BlockStoreTest, ReportsAFailedWriteAndDoesNotTakeTheBytesForWritten) {
  make_engine({{.index = 1, .kind = io::FaultKind::fail, .bytes = 4096, .error = EIO}});
  const auto store = make_store(small_options());
  write(*store, ChunkId{0}, 0, 1);
  const Error error = error_of([&] { write(*store, ChunkId{0}, 0, 2); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_NE(error.parts().reason.find("EIO"), std::string::npos) << error.what();
  EXPECT_EQ(error_of([&] { holds(*store, ChunkId{0}, 0, 1); }).kind(), ErrorKind::corrupt);
  store->check();
}

// In place each free slot is needed by a block that is not written yet.
TEST_F(BlockStoreTest, GivesTheSlotOfAFailedFirstWriteBack) {
  make_engine({{.index = 0, .kind = io::FaultKind::fail, .error = EIO}});
  const auto store = make_store(small_options());
  EXPECT_EQ(error_of([&] { write(*store, ChunkId{0}, 0, 1); }).kind(), ErrorKind::io);
  EXPECT_EQ(store->free_slot_count(), 7u);
  EXPECT_FALSE(store->written(ChunkId{0}, 0));
  store->check();
}

TEST_F(BlockStoreTest, WritesAndChecksDistinctBlocksOnSeveralThreads) {
  constexpr uint32_t kBlocks = 64;
  const auto store =
      make_store({.name = "records", .block_bytes = 4096, .chunk_bytes = {uint64_t{kBlocks} * 4096}});
  fill_random(pages.memory().first(kBlocks * 4096), 3);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t block = t; block < kBlocks; block += 4) {
        const auto bytes = pages.memory().subspan(block * 4096, 4096);
        BlockStore::Write written;
        ASSERT_TRUE(store->begin_write(ChunkId{0}, block, bytes, written));
        ASSERT_EQ(store->end_write(written, {0, 4096, 0}), BlockStore::WriteEnd::done);
        const io::Request request = store->read_request(ChunkId{0}, block, bytes);
        store->end_read(ChunkId{0}, block, request, {0, 4096, 0});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store->check();
}

TEST_F(BlockStoreTest, TwoOfOneNameAreRefused) {
  const auto store = make_store(small_options());
  EXPECT_EQ(error_of([&] { make_store(small_options()); }).kind(), ErrorKind::io);
  EXPECT_TRUE(fs::exists(file()));  // the first one stays
}

TEST_F(BlockStoreTest, DoesNotFollowALink) {
  places[0].write("elsewhere", "precious");
  fs::create_symlink(places[0] / "elsewhere", file());
  EXPECT_EQ(error_of([&] { make_store(small_options()); }).kind(), ErrorKind::io);
  EXPECT_EQ(fs::file_size(places[0] / "elsewhere"), 8u);
}

TEST_F(BlockStoreTest, LeavesAUsersFileOfItsNameAlone) {
  places[0].write("terrace-tier/records.tier", "precious");
  EXPECT_EQ(error_of([&] { make_store(small_options()); }).kind(), ErrorKind::io);
  EXPECT_EQ(fs::file_size(file()), 8u);
}

TEST_F(BlockStoreTest, RefusesWhatDoesNotFitTheDiskBeforeItWritesAnything) {
  BlockStoreOptions options = small_options();
  options.block_bytes = kGiB;
  options.chunk_bytes.assign(1 << 20, kGiB);
  const Error error = error_of([&] { make_store(options); });
  EXPECT_EQ(error.kind(), ErrorKind::capacity);
  EXPECT_NE(error.parts().what_failed.in(Door::cpp).find("records"), std::string::npos);
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_EQ(engine->stats().bytes_written, 0u);
}

TEST_F(BlockStoreTest, ReportsAFailureOfItsFirstWritesAndLeavesNothing) {
  make_engine({{.index = 2, .kind = io::FaultKind::fail, .error = EIO}});
  BlockStoreOptions options = small_options();
  options.spare_slots = 3000;
  const Error error = error_of([&] { make_store(options); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject.in(Door::cpp), file());
  EXPECT_NE(error.parts().what_failed.in(Door::cpp).find("offset " + std::to_string(7 * kBlock + 2 * kMiB)),
            std::string::npos)
      << error.what();
  EXPECT_NE(error.parts().reason.find("EIO"), std::string::npos) << error.what();
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_EQ(engine->in_flight(), 0u);
  make_engine({});
  make_store(options);  // the name is free again
}

TEST_F(BlockStoreTest, TurnsAFailedTransferIntoAnErrorThatSaysHowMuchIsFree) {
  make_engine({{.index = 0, .kind = io::FaultKind::fail, .bytes = 4096, .error = ENOSPC}});
  const auto store = make_store(small_options());
  const Error error = error_of([&] { write(*store, ChunkId{2}, 0, 1); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject.in(Door::cpp), file());
  EXPECT_NE(error.parts().what_failed.in(Door::cpp).find("8192 bytes at offset 0"), std::string::npos)
      << error.what();
  EXPECT_NE(error.parts().reason.find("ENOSPC"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().reason.find("are free"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().advice.in(Door::cpp).find(space->folder(0).path()), std::string::npos)
      << error.what();
}

TEST(BlockStore, OnAFullFileSystemIsACapacityError) {
  BlockStoreRig rig;
  const std::string place = rig.places[0].path();
  if (mount("none", place.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "mounting a tmpfs needs root";
  {
    BlockStoreOptions options = small_options();
    options.chunk_bytes = {6 * kMiB};
    const Error error = error_of([&] { rig.make_store(options); });
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(error.parts().reason.find("6295552 bytes"), std::string::npos) << error.what();
    EXPECT_FALSE(fs::exists(rig.space->folder(0).file_path("records")));

    options.chunk_bytes = {3 * kMiB};
    const auto store = rig.make_store(options);  // fits; no direct I/O in memory, and that is said
    ASSERT_EQ(rig.log.lines().size(), 1u);
    EXPECT_EQ(rig.log.lines()[0].level, LogLevel::warning);
    EXPECT_NE(rig.log.lines()[0].text.find("page cache"), std::string::npos) << rig.log.lines()[0].text;
  }
  rig.space.reset();
  EXPECT_EQ(umount(place.c_str()), 0);
}

TEST_F(BlockStoreTest, RemovesItsFileWhateverHappenedToItsBytes) {
  {
    const auto store = make_store(small_options());
    ASSERT_EQ(truncate(file().c_str(), 4096), 0);  // its mark is gone
  }
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(BlockStoreTest, LeavesWhatHasTakenItsPlace) {
  {
    const auto store = make_store(small_options());
    fs::rename(file(), file() + ".away");
    ASSERT_GE(close(open(file().c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  }
  EXPECT_TRUE(fs::exists(file()));
}

class BlockStoreDeathTest : public BlockStoreTest {
 protected:
  BlockStoreDeathTest() : store(make_store(small_options())) {
    engine.reset();  // its threads would not survive the fork
  }
  std::unique_ptr<BlockStore> store;
  std::span<std::byte> memory = pages.memory();
};

TEST_F(BlockStoreDeathTest, RefusesToReadWhatWasNeverWritten) {
  EXPECT_DEATH(store->read_request(ChunkId{0}, 1, memory.first(kBlock)), "was never written");
}

TEST_F(BlockStoreDeathTest, RefusesBlocksThatItDoesNotHave) {
  BlockStore::Write write;
  EXPECT_DEATH(store->begin_write(ChunkId{3}, 1, memory.first(kBlock), write), "is not in \"records\"");
  EXPECT_DEATH(store->begin_write(ChunkId{1}, 0, memory.first(kBlock), write), "is not in \"records\"");
  EXPECT_DEATH(store->begin_write(ChunkId{9}, 0, memory.first(kBlock), write), "is not in \"records\"");
}

TEST_F(BlockStoreDeathTest, RefusesTransfersOfAnythingButTheBlock) {
  BlockStore::Write write;
  EXPECT_DEATH(store->begin_write(ChunkId{0}, 0, memory.first(4096), write), "which has 8192");
  EXPECT_DEATH(store->begin_write(ChunkId{0}, 0, memory.subspan(8, kBlock), write),
               "does not suit direct I/O");
}

TEST_F(BlockStoreDeathTest, HasNoSnapshotsInPlace) {
  EXPECT_DEATH(store->snapshot(), "has no snapshots");
}

}  // namespace
}  // namespace terrace::block_store_test
