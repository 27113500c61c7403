#include <terrace/base/cgroups.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>

namespace terrace {
namespace {

// Calls take() with the folder of a cgroup and with those of its ancestors, "/a/b", "/a" and "/".
template <typename Take>
void for_each_ancestor(const std::string& mount, std::string cgroup, Take take) {
  for (; cgroup.size() > 1; cgroup.resize(std::max<size_t>(cgroup.rfind('/'), 1)))
    take(cgroup, mount + cgroup);
  take("/", mount);
}

}  // namespace

std::optional<std::string> text_of_system_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string under_root(const std::string& root, std::string_view path) {
  std::string result = root;
  while (!result.empty() && result.back() == '/') result.pop_back();
  return result + "/" + std::string(path);
}

std::vector<CgroupFolder> memory_cgroups(const std::string& root) {
  std::vector<CgroupFolder> found;
  std::istringstream lines(text_of_system_file(under_root(root, "proc/self/cgroup")).value_or(""));
  // A line is "<hierarchy>:<controllers>:<path>"; version 2 is hierarchy 0 and names no controllers.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    // A cgroup above the namespace of this process reads "/../x"; the process sees only its root.
    if (path.empty() || path.find("/..") != std::string::npos) path = "/";
    const bool is_v2 = line.substr(0, first) == "0" && controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const auto take = [&](const std::string& cgroup, const std::string& folder) {
      found.push_back({is_v2, cgroup, folder});
    };
    if (!is_v2) for_each_ancestor(under_root(root, "sys/fs/cgroup/memory"), path, take);
    if (is_v2) for_each_ancestor(under_root(root, "sys/fs/cgroup"), path, take);
    if (is_v2) for_each_ancestor(under_root(root, "sys/fs/cgroup/unified"), path, take);
  }
  return found;
}

}  // namespace terrace
