#include <terrace/aio/drives/block_device.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include <terrace/base/error.h>

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

// A chain of volumes on volumes longer than this is taken as it is.
constexpr int kMostLayers = 8;

std::string number_of(dev_t device) {
  return std::to_string(major(device)) + ":" + std::to_string(minor(device));
}

// The first line of a small file, without blanks at its ends; empty when there is none.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
}

// The only device that this one is made of, or an empty path when it is made of none, or of several.
fs::path only_part_below(const fs::path& device) {
  std::error_code error;
  fs::path found;
  for (const fs::directory_entry& entry : fs::directory_iterator(device / "slaves", error)) {
    if (!found.empty()) return {};
    found = entry.path();
  }
  return found.empty() ? found : fs::canonical(found, error);
}

// File systems such as btrfs number themselves; their mount says which device they are on.
std::string number_of_mount(const std::string& number, const fs::path& mounts) {
  std::ifstream file(mounts);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string id, parent, device;
    words >> id >> parent >> device;
    const size_t separator = line.find(" - ");
    if (device != number || separator == std::string::npos) continue;
    std::istringstream rest(line.substr(separator + 3));
    std::string type, source;
    rest >> type >> source;
    struct stat status {};
    if (source.starts_with("/dev/") && stat(source.c_str(), &status) == 0 && S_ISBLK(status.st_mode))
      return number_of(status.st_rdev);
  }
  return number;
}

}  // namespace

BlockDevice find_whole_device(const std::string& number, const DeviceTree& tree) {
  BlockDevice found{number, "", ""};
  std::error_code error;
  fs::path device = fs::canonical(tree.sys / "dev" / "block" / number, error);
  if (error) {
    const std::string mounted = number_of_mount(number, tree.mounts);
    if (mounted == number) return found;
    device = fs::canonical(tree.sys / "dev" / "block" / mounted, error);
    if (error) return {mounted, "", ""};
  }
  for (int layer = 0; layer < kMostLayers; ++layer) {
    const fs::path below =
        fs::exists(device / "partition", error) ? device.parent_path() : only_part_below(device);
    if (below.empty()) break;
    device = below;
  }
  const std::string whole = first_line(device / "dev");
  if (!whole.empty()) found.number = whole;
  found.name = device.filename().string();
  found.model = first_line(device / "device" / "model");
  return found;
}

BlockDevice find_block_device(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    throw Error(ErrorKind::io, {"cannot examine", path.string(), system_reason(errno), "check the path"});
  return find_whole_device(number_of(status.st_dev));
}

}  // namespace terrace::io
