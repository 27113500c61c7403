// Which drive a folder lies on: so that processes can take turns on it, and that a measurement of it can be
// told from one of another drive. It reads what the system says and must never open a device.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::io {

struct BlockDevice {
  // "254:0": of the whole drive, also when the folder lies on a partition or on a volume over one drive. For
  // file systems without a drive of their own (tmpfs, network), the number of the file system.
  std::string number;
  std::string name;   // "nvme0n1"; empty where the system knows none
  std::string model;  // "Samsung SSD 990 PRO 2TB"; empty where the system knows none
};

// Where the system describes its devices; tests give their own.
struct DeviceTree {
  std::filesystem::path sys = "/sys";
  std::filesystem::path mounts = "/proc/self/mountinfo";
};

// The drive of an existing path. Throws Error(io) when the path cannot be examined; what the system does not
// say stays empty.
BlockDevice find_block_device(const std::filesystem::path& path);
// The drive that block device `number` ("259:3") is a part of.
BlockDevice find_whole_device(const std::string& number, const DeviceTree& tree = {});

}  // namespace terrace::io
