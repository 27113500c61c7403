#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/fault_engine.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/pages.h>
#include <terrace/memory/tier_file.h>

#include "temporary_folder.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 8192;
constexpr uint64_t kSlot = 5 * 4096;  // two blocks and a half

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::cancelled, {});
}

TierFileOptions small_options(bool verify = true) {
  // The second chunk is not in the file, the last one is short.
  return {.name = "records",
          .slot_bytes = kSlot,
          .block_bytes = kBlock,
          .chunk_bytes = {kSlot, 0, kSlot, 4096},
          .verify = verify};
}

struct Outcome {
  bool done = false;
  io::Completion completion{};
};

void on_outcome(void* context, const io::Completion& completion) noexcept {
  auto& outcome = *static_cast<Outcome*>(context);
  outcome.completion = completion;
  outcome.done = true;
}

class TierFileTest : public testing::Test {
 protected:
  TierFileTest() { make_engine({}); }
  void make_engine(std::vector<io::Fault> faults) {
    engine = std::make_unique<io::FaultEngine>(io::make_engine({.kind = io::EngineKind::threads}, log),
                                               std::move(faults));
  }
  std::unique_ptr<TierFile> make_file(TierFileOptions options = small_options()) {
    return std::make_unique<TierFile>(*folder, std::move(options), *engine, log);
  }
  io::Completion transfer(io::Request request) {
    Outcome outcome;
    request.on_complete = on_outcome;
    request.context = &outcome;
    engine->submit({&request, 1});
    while (!outcome.done) engine->wait(1);
    return outcome.completion;
  }
  void fill(std::span<std::byte> bytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }
  void write_chunk(TierFile& file, ChunkId chunk, std::span<const std::byte> bytes) {
    file.seal(chunk, 0, bytes);
    ASSERT_EQ(transfer(file.write_request(chunk, 0, bytes)).error, 0);
  }

  TemporaryFolder place;
  MemoryLog log;
  std::unique_ptr<TierFolder> folder = std::make_unique<TierFolder>(place.path(), log);
  std::unique_ptr<io::Engine> engine;
  PageMapping pages = PageMapping::populated(64 * 4096, false, "a test");
  std::span<std::byte> source = pages.memory().first(kSlot);
  std::span<std::byte> destination = pages.memory().subspan(32 * 4096, kSlot);
};

TEST_F(TierFileTest, IsPrivateAsLongAsItsSlotsAndItsMarkAndWrittenOnce) {
  const auto file = make_file();
  EXPECT_EQ(file->path(), folder->path() + "/records.tier");
  EXPECT_EQ(file->file_bytes(), 3 * kSlot);
  struct stat status;
  ASSERT_EQ(stat(file->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(status.st_size), 3 * kSlot + TierFolder::kMarkBytes);
  EXPECT_GE(static_cast<uint64_t>(status.st_blocks) * 512, 3 * kSlot);
  EXPECT_EQ(engine->stats().bytes_written, 3 * kSlot);
  EXPECT_EQ(file->requested_write_bytes(), 0u);  // nobody asked for that
  EXPECT_EQ(file->chunk_bytes(ChunkId{3}), 4096u);
}

TEST_F(TierFileTest, WritesEveryByteOfALargeFileOnce) {
  const uint64_t slot = 5 * kMiB + 4096;
  const auto file = make_file({.name = "params",
                               .slot_bytes = slot,
                               .block_bytes = kMiB,
                               .chunk_bytes = std::vector<uint64_t>(7, slot)});
  EXPECT_EQ(file->file_bytes(), 7 * slot);
  EXPECT_EQ(engine->stats().bytes_written, 7 * slot);
  EXPECT_EQ(engine->in_flight(), 0u);
}

TEST_F(TierFileTest, GivesBackWhatWasWrittenToEachChunk) {
  const auto file = make_file();
  const ChunkId chunks[] = {ChunkId{0}, ChunkId{2}, ChunkId{3}};
  for (const ChunkId chunk : chunks) {
    const auto bytes = source.first(file->chunk_bytes(chunk));
    fill(bytes, index_of(chunk));
    write_chunk(*file, chunk, bytes);
  }
  for (const ChunkId chunk : chunks) {
    const uint64_t size = file->chunk_bytes(chunk);
    ASSERT_EQ(transfer(file->read_request(chunk, 0, destination.first(size))).error, 0);
    file->check(chunk, 0, destination.first(size));
    fill(source.first(size), index_of(chunk));
    EXPECT_EQ(std::memcmp(source.data(), destination.data(), size), 0);
  }
  EXPECT_EQ(file->requested_read_bytes(), 2 * kSlot + 4096);
  EXPECT_EQ(file->requested_write_bytes(), 2 * kSlot + 4096);
}

TEST_F(TierFileTest, ReadsAndChecksSingleBlocks) {
  const auto file = make_file();
  fill(source, 1);
  write_chunk(*file, ChunkId{2}, source);
  const uint64_t last = 2 * kBlock;
  ASSERT_EQ(transfer(file->read_request(ChunkId{2}, last, destination.first(4096))).error, 0);
  file->check(ChunkId{2}, last, destination.first(4096));
  EXPECT_EQ(std::memcmp(source.data() + last, destination.data(), 4096), 0);
}

TEST_F(TierFileTest, KnowsWhichBlocksWereEverSealed) {
  const auto file = make_file();
  EXPECT_FALSE(file->sealed(ChunkId{0}, 0));
  file->seal(ChunkId{0}, kBlock, source.first(kBlock));
  EXPECT_FALSE(file->sealed(ChunkId{0}, kBlock - 1));
  EXPECT_TRUE(file->sealed(ChunkId{0}, kBlock));
  EXPECT_TRUE(file->sealed(ChunkId{0}, 2 * kBlock - 1));
  EXPECT_FALSE(file->sealed(ChunkId{0}, 2 * kBlock));
  EXPECT_FALSE(file->sealed(ChunkId{2}, kBlock));
}

TEST_F(TierFileTest, FindsAFlippedByteAndNamesItsChunk) {
  const auto file = make_file();
  fill(source, 5);
  write_chunk(*file, ChunkId{2}, source);
  // Chunk 2 lies in slot 1, since chunk 1 is not in the file.
  const int fd = open(file->path().c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const std::byte flipped = source[kBlock + 77] ^ std::byte{0x10};
  ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(kSlot + kBlock + 77)), 1);
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  ASSERT_EQ(transfer(file->read_request(ChunkId{2}, 0, destination)).error, 0);
  file->check(ChunkId{2}, 0, destination.first(kBlock));  // the others are whole
  file->check(ChunkId{2}, 2 * kBlock, destination.subspan(2 * kBlock));
  const Error error = error_of([&] { file->check(ChunkId{2}, 0, destination); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  EXPECT_EQ(error.parts().subject, file->path());
  EXPECT_NE(error.parts().reason.find("chunk 2, offset 8192 (28672 in the file), 8192 bytes"),
            std::string::npos)
      << error.what();
  EXPECT_NE(error.parts().reason.find("expected 0x"), std::string::npos);
}

TEST_F(TierFileTest, FindsAWriteThatWasLost) {
  const auto file = make_file();
  fill(source, 1);
  write_chunk(*file, ChunkId{0}, source);
  fill(source, 2);
  file->seal(ChunkId{0}, 0, source);  // the write itself never happens
  ASSERT_EQ(transfer(file->read_request(ChunkId{0}, 0, destination)).error, 0);
  EXPECT_EQ(error_of([&] { file->check(ChunkId{0}, 0, destination); }).kind(), ErrorKind::corrupt);
}

TEST_F(TierFileTest, ChecksNothingWhenAskedNotTo) {
  const auto file = make_file(small_options(false));
  EXPECT_FALSE(file->verifies());
  fill(source, 1);
  write_chunk(*file, ChunkId{0}, source);
  EXPECT_TRUE(file->sealed(ChunkId{0}, 0));
  fill(destination, 2);
  file->check(ChunkId{0}, 0, destination);
}

TEST_F(TierFileTest, SealsAndChecksDistinctBlocksOnSeveralThreads) {
  const uint64_t blocks = 64;
  const auto file = make_file(
      {.name = "records", .slot_bytes = blocks * 4096, .block_bytes = 4096, .chunk_bytes = {blocks * 4096}});
  fill(pages.memory(), 3);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t block = t; block < blocks; block += 4) {
        file->seal(ChunkId{0}, block * 4096, pages.memory().subspan(block * 4096, 4096));
        file->check(ChunkId{0}, block * 4096, pages.memory().subspan(block * 4096, 4096));
        file->read_request(ChunkId{0}, block * 4096, pages.memory().subspan(block * 4096, 4096));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  file->check(ChunkId{0}, 0, pages.memory());
  EXPECT_EQ(file->requested_read_bytes(), blocks * 4096);
}

TEST_F(TierFileTest, TwoOfOneNameAreRefused) {
  const auto file = make_file();
  EXPECT_EQ(error_of([&] { make_file(); }).kind(), ErrorKind::io);
  EXPECT_TRUE(fs::exists(file->path()));  // the first one stays
}

TEST_F(TierFileTest, DoesNotFollowALink) {
  place.write("elsewhere", "precious");
  fs::create_symlink(place.path() + "/elsewhere", folder->path() + "/records.tier");
  EXPECT_EQ(error_of([&] { make_file(); }).kind(), ErrorKind::io);
  EXPECT_EQ(fs::file_size(place.path() + "/elsewhere"), 8u);
}

TEST_F(TierFileTest, RefusesWhatDoesNotFitTheDiskBeforeItWritesAnything) {
  TierFileOptions options = small_options();
  options.slot_bytes = uint64_t{1} << 50;
  options.chunk_bytes = {4096, 4096};
  const Error error = error_of([&] { make_file(options); });
  EXPECT_EQ(error.kind(), ErrorKind::capacity);
  EXPECT_NE(error.parts().what_failed.find("records"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder->path() + "/records.tier"));
  EXPECT_EQ(engine->stats().bytes_written, 0u);
}

TEST_F(TierFileTest, ReportsAFailureOfItsFirstWritesAndLeavesNothing) {
  make_engine({{.index = 2, .kind = io::FaultKind::fail, .error = EIO}});
  TierFileOptions options = small_options();
  options.slot_bytes = 10 * kMiB;
  const Error error = error_of([&] { make_file(options); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject, folder->path() + "/records.tier");
  EXPECT_NE(error.parts().what_failed.find("offset 2097152"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().reason.find("EIO"), std::string::npos) << error.what();
  EXPECT_FALSE(fs::exists(folder->path() + "/records.tier"));
  EXPECT_EQ(engine->in_flight(), 0u);
  make_engine({});
  make_file();  // the name is free again
}

TEST_F(TierFileTest, TurnsAFailedTransferIntoAnErrorThatSaysHowMuchIsFree) {
  make_engine({{.index = 1, .kind = io::FaultKind::fail, .bytes = 4096, .error = ENOSPC}});
  const auto file = make_file();
  file->seal(ChunkId{2}, 0, source);
  const io::Request request = file->write_request(ChunkId{2}, 0, source);
  const io::Completion completion = transfer(request);
  ASSERT_EQ(completion.error, ENOSPC);
  const Error error = file->io_error(request, completion);
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject, file->path());
  EXPECT_NE(error.parts().what_failed.find("20480 bytes at offset 20480"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().reason.find("ENOSPC"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().reason.find("are free"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().advice.find(folder->path()), std::string::npos) << error.what();
}

TEST(TierFile, OnAFullFileSystemIsACapacityError) {
  const TemporaryFolder place;
  if (mount("none", place.path().c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root";
  {
    MemoryLog log;
    TierFolder folder(place.path(), log);
    const auto engine = io::make_engine({.kind = io::EngineKind::threads}, log);
    TierFileOptions options = small_options();
    options.slot_bytes = 2 * kMiB;
    const Error error = error_of([&] { TierFile(folder, options, *engine, log); });
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(error.parts().reason.find("6295552 bytes"), std::string::npos) << error.what();
    EXPECT_FALSE(fs::exists(folder.file_path("records")));

    options.slot_bytes = kMiB;
    const TierFile file(folder, options, *engine, log);  // fits; no direct I/O in memory, and that is said
    ASSERT_EQ(log.lines().size(), 1u);
    EXPECT_EQ(log.lines()[0].level, LogLevel::warning);
    EXPECT_NE(log.lines()[0].text.find("page cache"), std::string::npos) << log.lines()[0].text;
  }
  EXPECT_EQ(umount(place.path().c_str()), 0);
}

class TierFileDeathTest : public TierFileTest {
 protected:
  TierFileDeathTest() : file(make_file()) { engine.reset(); }  // its threads would not survive the fork
  std::unique_ptr<TierFile> file;
};

TEST_F(TierFileDeathTest, RefusesToReadWhatWasNeverWritten) {
  file->seal(ChunkId{0}, 0, source.first(kBlock));
  EXPECT_DEATH(file->read_request(ChunkId{0}, 0, destination), "where nothing was ever written");
}

TEST_F(TierFileDeathTest, RefusesWhatIsNotInTheChunkOrTheFile) {
  EXPECT_DEATH(file->write_request(ChunkId{3}, 0, source), "are not in chunk 3");
  EXPECT_DEATH(file->write_request(ChunkId{1}, 0, source), "chunk 1 is not in");
  EXPECT_DEATH(file->write_request(ChunkId{9}, 0, source), "chunk 9 is not in");
}

TEST_F(TierFileDeathTest, RefusesTransfersThatDoNotSuitDirectIo) {
  EXPECT_DEATH(file->write_request(ChunkId{0}, 512, source.first(4096)), "do not suit direct I/O");
  EXPECT_DEATH(file->write_request(ChunkId{0}, 0, source.first(100)), "do not suit direct I/O");
  EXPECT_DEATH(file->write_request(ChunkId{0}, 0, source.subspan(8, 4096)), "do not suit direct I/O");
}

TEST_F(TierFileDeathTest, SealsWholeBlocksOnly) {
  EXPECT_DEATH(file->seal(ChunkId{0}, 4096, source.first(kBlock)), "are not whole blocks");
  EXPECT_DEATH(file->seal(ChunkId{0}, 0, source.first(4096)), "are not whole blocks");
}

TEST(TierFile, RemovesItsFileWhateverHappenedToItsBytes) {
  const TemporaryFolder path;
  MemoryLog log;
  TierFolder folder(path.path(), log);
  const std::unique_ptr<io::Engine> engine = io::make_engine({}, log);
  std::string name;
  {
    const TierFile file(folder, small_options(), *engine, log);
    name = file.path();
    ASSERT_EQ(truncate(name.c_str(), 4096), 0);  // its mark is gone
  }
  EXPECT_FALSE(fs::exists(name));
}

TEST(TierFile, LeavesWhatHasTakenItsPlace) {
  const TemporaryFolder path;
  MemoryLog log;
  TierFolder folder(path.path(), log);
  const std::unique_ptr<io::Engine> engine = io::make_engine({}, log);
  std::string name;
  {
    const TierFile file(folder, small_options(), *engine, log);
    name = file.path();
    fs::rename(name, name + ".away");
    ASSERT_GE(close(open(name.c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  }
  EXPECT_TRUE(fs::exists(name));
}

}  // namespace
}  // namespace terrace
