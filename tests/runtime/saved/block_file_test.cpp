#include <terrace/runtime/saved/block_file.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <random>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::block_file_test {
namespace {

using saved::BlockReader;
using saved::BlockWriter;
using saved::DataFile;
using saved::kBlockBytes;
using namespace checkpoint_tests;

std::vector<std::byte> random_bytes(uint64_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(CheckpointBlockFile, GivesBackWhatItGotInPiecesOfAnySize) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, kBlockBytes - 1, kBlockBytes, 3 * kBlockBytes + 5}) {
    const ScratchFolder folder;
    const std::vector<std::byte> bytes = random_bytes(size);
    std::mt19937_64 random(size);
    BlockWriter writer(folder.path() / "data");
    writer.reserve(size);
    for (uint64_t at = 0; at < size;) {
      const uint64_t count = std::min<uint64_t>(size - at, 1 + random() % (2 * kBlockBytes));
      writer.write({bytes.data() + at, count});
      at += count;
    }
    const DataFile file = writer.finish();
    EXPECT_EQ(file.bytes, size);
    EXPECT_EQ(file.block_checksums.size(), (size + kBlockBytes - 1) / kBlockBytes);

    BlockReader reader(folder.path() / "data", file);
    std::vector<std::byte> found(size);
    for (uint64_t at = 0; at < size;) {
      EXPECT_FALSE(reader.at_end());
      const uint64_t count = std::min<uint64_t>(size - at, 1 + random() % (2 * kBlockBytes));
      reader.read({found.data() + at, count});
      at += count;
    }
    EXPECT_TRUE(reader.at_end());
    EXPECT_TRUE(found == bytes);
  }
}

// More than twice what goes to the device at a time.
TEST(CheckpointBlockFile, WritesLongFilesToTheDeviceOnTheWay) {
  const ScratchFolder folder;
  const uint64_t size = 27 * kMiB + 12345;
  const std::vector<std::byte> bytes = random_bytes(size);
  BlockWriter writer(folder.path() / "data");
  for (uint64_t at = 0; at < size; at += kBlockBytes)
    writer.write({bytes.data() + at, std::min<uint64_t>(kBlockBytes, size - at)});
  BlockReader reader(folder.path() / "data", writer.finish());
  std::vector<std::byte> found(size);
  reader.read(found);
  EXPECT_TRUE(found == bytes);
}

TEST(CheckpointBlockFile, GivesOutNothingOfABadBlockAndAllBeforeIt) {
  for (const uint64_t bad : {0, 1, 2}) {
    const ScratchFolder folder;
    const std::vector<std::byte> bytes = random_bytes(2 * kBlockBytes + 100);
    BlockWriter writer(folder.path() / "data");
    writer.write(bytes);
    const DataFile file = writer.finish();
    std::string text = text_of(folder.path() / "data");
    text[bad * kBlockBytes + 99] ^= 4;
    write_text(folder.path() / "data", text);
    BlockReader reader(folder.path() / "data", file);
    std::vector<std::byte> found(bad * kBlockBytes);
    reader.read(found);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), bytes.begin()));
    std::vector<std::byte> piece(1, std::byte{0x5a});
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(ErrorKind::corrupt, {"block " + std::to_string(bad)}, [&] { reader.read(piece); });
      EXPECT_EQ(piece[0], std::byte{0x5a});
    }
    EXPECT_FALSE(reader.at_end());
  }
}

TEST(CheckpointBlockFile, ThatIsCutOffWhileItIsReadIsReported) {
  const ScratchFolder folder;
  BlockWriter writer(folder.path() / "data");
  writer.write(random_bytes(2 * kBlockBytes));
  BlockReader reader(folder.path() / "data", writer.finish());
  fs::resize_file(folder.path() / "data", kBlockBytes + 10);
  std::vector<std::byte> found(kBlockBytes);
  reader.read(found);
  expect_error(ErrorKind::corrupt, {"shorter", "block 1"}, [&] { reader.read(found); });
}

TEST(CheckpointBlockFile, NamesTheFullDiskWhileWriting) {
  const SmallFileSystem disk("2m");
  if (!disk.refusal().empty()) GTEST_SKIP() << "cannot mount a small file system: " << disk.refusal();
  const std::vector<std::byte> bytes = random_bytes(3 * kMiB);
  BlockWriter writer(disk.path() / "data");
  expect_error(ErrorKind::capacity, {"offset 2097152", "data", "ENOSPC", "older"},
               [&] { writer.write(bytes); });
  BlockWriter other(disk.path() / "other");
  expect_error(ErrorKind::capacity, {"other"}, [&] { other.reserve(3 * kMiB); });
}

TEST(CheckpointBlockFile, NamesAnyOtherFailureOfAWrite) {
  const ScratchFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{kBlockBytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::vector<std::byte> bytes = random_bytes(2 * kBlockBytes);
  BlockWriter writer(folder.path() / "data");
  expect_error(ErrorKind::io, {"offset 786432", "data", "EFBIG"}, [&] { writer.write(bytes); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace terrace::block_file_test
