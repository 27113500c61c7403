// Drives in a made-up /sys, and the one that this test runs on.
#include <terrace/aio/drives/block_device.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <terrace/base/error.h>

#include "aio/aio_support.h"

namespace terrace::io::block_device_test {
namespace {

namespace fs = std::filesystem;

class FakeSys {
 public:
  FakeSys() {
    fs::create_directories(tree().sys / "dev" / "block");
    write("mountinfo", "");
  }
  DeviceTree tree() const { return {folder_ / "sys", folder_ / "mountinfo"}; }
  // A device at devices/<path>, with its number.
  void add(const std::string& path, const std::string& number) {
    write("sys/devices/" + path + "/dev", number + "\n");
    fs::create_symlink("../../devices/" + path, tree().sys / "dev" / "block" / number);
  }
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  // `volume` lies on `part`.
  void put_on(const std::string& volume, const std::string& part) {
    const fs::path slaves = tree().sys / "devices" / volume / "slaves";
    fs::create_directories(slaves);
    fs::create_symlink(tree().sys / "devices" / part, slaves / fs::path(part).filename());
  }

 private:
  ScratchFolder folder_;
};

TEST(BlockDevice, TakesAPartitionForItsDrive) {
  FakeSys sys;
  sys.add("pci/nvme0n1", "259:0");
  sys.add("pci/nvme0n1/nvme0n1p2", "259:2");
  sys.write("sys/devices/pci/nvme0n1/nvme0n1p2/partition", "2\n");
  sys.write("sys/devices/pci/nvme0n1/device/model", "Fast Drive 2TB   \n");
  for (const char* number : {"259:0", "259:2"}) {
    const BlockDevice drive = find_whole_device(number, sys.tree());
    EXPECT_EQ(drive.number, "259:0");
    EXPECT_EQ(drive.name, "nvme0n1");
    EXPECT_EQ(drive.model, "Fast Drive 2TB");
  }
}

TEST(BlockDevice, FollowsAVolumeOverOnePartAndStopsAtOneOverSeveral) {
  FakeSys sys;
  sys.add("pci/sda", "8:0");
  sys.add("pci/sda/sda1", "8:1");
  sys.write("sys/devices/pci/sda/sda1/partition", "1\n");
  sys.add("pci/sdb", "8:16");
  sys.add("virtual/dm-0", "252:0");
  sys.put_on("virtual/dm-0", "pci/sda/sda1");
  sys.add("virtual/md0", "9:0");
  sys.put_on("virtual/md0", "pci/sda");
  sys.put_on("virtual/md0", "pci/sdb");
  EXPECT_EQ(find_whole_device("252:0", sys.tree()).number, "8:0");
  EXPECT_EQ(find_whole_device("9:0", sys.tree()).number, "9:0");
  EXPECT_EQ(find_whole_device("9:0", sys.tree()).name, "md0");
}

TEST(BlockDevice, NamesAFileSystemWithoutADriveByItsOwnNumber) {
  FakeSys sys;
  sys.write("mountinfo",
            "28 27 0:25 / /mnt rw - tmpfs tmpfs rw\n"
            "29 27 0:31 / /data rw - btrfs /dev/there-is-no-such-drive rw\n"
            "30 27 0:32 / /broken\n");
  for (const char* number : {"0:25", "0:31", "0:32", "0:99"}) {
    const BlockDevice drive = find_whole_device(number, sys.tree());
    EXPECT_EQ(drive.number, number);
    EXPECT_EQ(drive.name, "");
  }
}

TEST(BlockDevice, IsTheSameForEveryFolderOfADrive) {
  ScratchFolder folder;
  fs::create_directory(folder.path() / "below");
  const BlockDevice drive = find_block_device(folder.path());
  EXPECT_FALSE(drive.number.empty());
  EXPECT_EQ(find_block_device(folder.path() / "below").number, drive.number);
  EXPECT_THROW(find_block_device(folder.path() / "nowhere"), Error);
}

}  // namespace
}  // namespace terrace::io::block_device_test
