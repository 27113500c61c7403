// What the operating system says about addresses of this process; for tests that compare with it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace terrace {

// The sum of a field of /proc/self/smaps ("Pss:", "Locked:", "AnonHugePages:") over the mappings that lie in
// `range`; a mapping that reaches beyond it counts as a whole.
inline uint64_t smaps_bytes(std::span<const std::byte> range, const std::string& field) {
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  const uintptr_t end = begin + range.size();
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  uint64_t bytes = 0;
  while (std::getline(smaps, line)) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (const size_t dash = first.find('-'); dash != std::string::npos && !first.ends_with(':')) {
      const uintptr_t from = std::stoull(first.substr(0, dash), nullptr, 16);
      const uintptr_t to = std::stoull(first.substr(dash + 1), nullptr, 16);
      inside = from < end && to > begin;
    } else if (inside && first == field) {
      uint64_t kilobytes = 0;
      words >> kilobytes;
      bytes += kilobytes * 1024;
    }
  }
  return bytes;
}

// All memory of this process that no file stands behind.
inline uint64_t anonymous_bytes() {
  return smaps_bytes({static_cast<const std::byte*>(nullptr), std::numeric_limits<size_t>::max()},
                     "Anonymous:");
}

// The memory behind mappings for which huge pages were asked, as Terrace's arenas do and hardly anybody else:
// what libraries and sanitizers allocate is not among it.
inline uint64_t huge_mappings_bytes() {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  uint64_t mapping = 0, bytes = 0;
  while (std::getline(smaps, line)) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "Anonymous:") words >> mapping;
    if (first == "VmFlags:" && line.find(" hg") != std::string::npos) bytes += mapping * 1024;
  }
  return bytes;
}

// What is pinned of this process's memory, which the system keeps whatever is unmapped.
inline uint64_t pinned_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  uint64_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmPin:") status >> kilobytes;
  }
  return kilobytes * 1024;
}

// The bytes of `range`, which begins with a page, that are in memory.
inline uint64_t resident_bytes(std::span<const std::byte> range) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((range.size() + page - 1) / page);
  if (mincore(const_cast<std::byte*>(range.data()), range.size(), pages.data()) != 0) {
    throw std::runtime_error("mincore");
  }
  return page * static_cast<uint64_t>(
                    std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; }));
}

// Whether a read of this byte would work; asked of the kernel, so that a fault is only an errno.
inline bool is_readable(const std::byte* address) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

}  // namespace terrace
