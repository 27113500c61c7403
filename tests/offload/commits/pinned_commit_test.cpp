// A commit that is read while training goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "support/patience.h"

namespace terrace::pinned_commit_test {
namespace {

std::vector<std::byte> read_all(PinnedCommit& commit, uint64_t tiles_at_once) {
  std::vector<std::byte> all(commit.record_tile_count() * RecordLayout{}.tile_bytes());
  for (uint64_t tile = 0; tile < commit.record_tile_count(); tile += tiles_at_once) {
    const uint64_t count = std::min(tiles_at_once, commit.record_tile_count() - tile);
    commit.read_records(tile, std::span(all).subspan(tile * RecordLayout{}.tile_bytes(),
                                                     count * RecordLayout{}.tile_bytes()));
  }
  return all;
}

TEST(PinnedCommit, StaysAsItIsWhileTrainingGoesOn) {
  for (const uint64_t chunk_elements : {kTileElements, 32 * kTileElements}) {
    const ScratchFolder folder;
    CommitRig rig({.parameters = Placement::nvme, .with_frozen = true, .chunk_elements = chunk_elements},
                  folder.path());
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    rig.offloader->commits().finish();
    const std::vector<std::byte> expected = rig.records();
    std::vector<std::byte> expected_frozen;
    rig.offloader->state().export_frozen([&](std::span<const std::byte> bytes) {
      expected_frozen.insert(expected_frozen.end(), bytes.begin(), bytes.end());
    });
    std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
    EXPECT_EQ(commit->commit(), 1u);
    EXPECT_EQ(commit->info(), step_info(1));
    EXPECT_EQ(commit->record_tile_count(), rig.offloader->state().record_tile_count());
    EXPECT_EQ(commit->frozen_bytes(), rig.offloader->state().frozen_bytes());
    std::atomic<bool> differs{false}, reads{true};
    std::thread copy([&] {
      for (const uint64_t tiles : {1u, 7u, 16u, 1000u})
        differs = differs || read_all(*commit, tiles) != expected;
      std::vector<std::byte> frozen(commit->frozen_bytes());
      commit->read_frozen(0, std::span(frozen).first(4096));
      commit->read_frozen(4096, std::span(frozen).subspan(4096));
      differs = differs || frozen != expected_frozen;
      commit.reset();
      reads = false;
    });
    uint64_t step = 2;
    while (reads || step < 5) rig.step(step++);
    copy.join();
    EXPECT_FALSE(differs);
    rig.offloader->commits().begin(step_info(step));
    EXPECT_EQ(rig.offloader->commits().finish(), 2u);
    std::unique_ptr<PinnedCommit> next = rig.offloader->commits().pin();
    EXPECT_EQ(read_all(*next, 5), rig.records());
  }
}

TEST(PinnedCommit, PutsTheNextCommitOff) {
  const ScratchFolder folder;
  CommitRig rig({}, folder.path());
  rig.offloader->commits().begin("one");
  std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
  const std::vector<std::byte> expected = rig.records();
  rig.step(1);
  rig.step(2);
  std::atomic<bool> differs{false};
  std::thread copy([&] {
    // Until the step thread waits for this.
    EXPECT_TRUE(testing::comes_true([&] { return rig.offloader->report().watch().current().has_value(); }));
    differs = read_all(*commit, 3) != expected;
    commit.reset();
  });
  rig.offloader->commits().begin("two");
  copy.join();
  EXPECT_FALSE(differs);
  EXPECT_EQ(rig.offloader->commits().finish(), 2u);
}

TEST(PinnedCommit, NamesAFlippedByteAndReadsOn) {
  const ScratchFolder folder;
  CommitRig rig({.cached_quarters = 0}, folder.path());
  rig.offloader->commits().begin("one");
  std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
  {
    std::fstream bytes(folder.path() / "terrace-tier" / "records.tier",
                       std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t tile = 0; tile < 2 * commit->record_tile_count(); ++tile) {
      bytes.seekg(static_cast<std::streamoff>(tile * RecordLayout{}.tile_bytes() + 5));
      const char value = static_cast<char>(bytes.get() ^ 4);
      bytes.seekp(static_cast<std::streamoff>(tile * RecordLayout{}.tile_bytes() + 5));
      bytes.put(value);
    }
  }
  std::vector<std::byte> tiles(3 * RecordLayout{}.tile_bytes());
  for (int again = 0; again < 2; ++again) {
    try {
      commit->read_records(1, tiles);
      FAIL() << "a flipped byte went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt);
      EXPECT_NE(std::string(error.what()).find("records.tier"), std::string::npos) << error.what();
    }
  }
}

// A file system of its own in an image, where the machine lets us have one that shares blocks.
class ReflinkFolder {
 public:
  ReflinkFolder() {
    const std::string image = (folder_.path() / "image").string();
    mount_point_ = folder_.path() / "mounted";
    std::filesystem::create_directory(mount_point_);
    const std::string make = "truncate -s 320M '" + image + "' && (mkfs.xfs -q -m reflink=1 '" + image +
                             "' || mkfs.btrfs -q '" + image + "') >/dev/null 2>&1 && mount -o loop '" +
                             image + "' '" + mount_point_.string() + "' >/dev/null 2>&1";
    mounted_ = std::system(make.c_str()) == 0;
  }
  ~ReflinkFolder() {
    if (mounted_) umount2(mount_point_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return mount_point_; }

 private:
  ScratchFolder folder_;
  std::filesystem::path mount_point_;
  bool mounted_ = false;
};

std::vector<std::byte> bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

TEST(PinnedCommit, IsClonedWhereTheFileSystemSharesBlocks) {
  const ReflinkFolder folder;
  if (!folder.mounted()) GTEST_SKIP() << "no file system that shares blocks can be mounted here";
  CommitRig rig({.parameters = Placement::nvme, .with_frozen = true, .chunk_elements = 32 * kTileElements},
                folder.path());
  rig.step(1);
  rig.offloader->commits().begin(step_info(1));
  rig.offloader->commits().finish();
  const std::vector<std::byte> expected = rig.records();
  std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
  const auto clone = [&](const char* name, auto body) {
    const int fd = open((folder.path() / name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_TRUE(body(fd));
    close(fd);
    return bytes_of_file(folder.path() / name);
  };
  EXPECT_EQ(clone("states.bin", [&](int fd) { return commit->clone_records(fd); }), expected);
  std::vector<std::byte> frozen(commit->frozen_bytes());
  commit->read_frozen(0, frozen);
  EXPECT_EQ(clone("frozen.bin", [&](int fd) { return commit->clone_frozen(fd); }), frozen);
  commit.reset();
  // What training writes later is not in the clone.
  for (uint64_t step = 2; step <= 4; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
  }
  rig.offloader->commits().finish();
  EXPECT_EQ(bytes_of_file(folder.path() / "states.bin"), expected);
}

TEST(PinnedCommit, SaysWhereItCannotBeCloned) {
  const ScratchFolder folder;
  CommitRig rig({}, folder.path());
  rig.offloader->commits().begin("one");
  const std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
  const int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(commit->clone_records(fd));
  close(fd);
}

}  // namespace
}  // namespace terrace::pinned_commit_test
