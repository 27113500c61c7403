// Finds the drive that a folder lies on, so that processes can take turns on it and a measurement of it can
// be told from one of another drive. It reads what the system says and must never open a drive.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::io {

struct BlockDevice {
  // The number of the whole drive, "254:0", also when the folder lies on a partition or on a volume over one
  // drive; for file systems without a drive of their own (tmpfs, network), the number of the file system.
  std::string number;
  std::string name;   // "nvme0n1"; empty where the system knows none
  std::string model;  // "Samsung SSD 990 PRO 2TB"; empty where the system knows none
};

// The files in which the system describes its drives; tests give their own.
struct DeviceTree {
  std::filesystem::path sys = "/sys";
  std::filesystem::path mounts = "/proc/self/mountinfo";
};

// Finds the drive of an existing path. Throws Error(io) when the path cannot be examined; members that the
// system says nothing about stay empty.
BlockDevice find_block_device(const std::filesystem::path& path);
// Finds the drive that block device `number` ("259:3") is a part of.
BlockDevice find_whole_device(const std::string& number, const DeviceTree& tree = {});

}  // namespace terrace::io
