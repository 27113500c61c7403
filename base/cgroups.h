// What files of the system say, and the folders of the cgroups that this process is in. Every function takes
// the root under which proc/ and sys/ lie, so that tests can describe any machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Returns the whole file; nothing if it cannot be read.
std::optional<std::string> text_of_system_file(const std::string& path);
// Without the white space at both ends.
std::string_view trimmed(std::string_view text);
// Returns "/a/proc" for the root "/a" or "/a/".
std::string under_root(const std::string& root, std::string_view path);

// A folder of a hierarchy of cgroups in which this process is.
struct CgroupFolder {
  bool is_v2 = false;
  std::string cgroup;  // "/" or "/a/b", as the system calls it
  std::string folder;
};

// The folders in which the memory of this process is counted, in both versions of cgroups, each before its
// ancestors. A container often sees its own cgroup as the root of the mount, so a folder may be missing while
// that of an ancestor is there.
std::vector<CgroupFolder> memory_cgroups(const std::string& root);

}  // namespace terrace
