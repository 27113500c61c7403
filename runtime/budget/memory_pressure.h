// MemoryPressure decides when a run gives host memory back before the kernel kills it, and when it takes some
// back. It reads the numbers of the process's memory cgroup and decides how many records stay in host memory;
// it must never move any itself. Without a limit of memory it decides nothing.
//
// The rule applies at most ten times a second and between two steps. The reserve is 1/16 of the limit. Held
// memory is the memory that the kernel cannot drop: memory.current without the pages of files. The names are
// those of version 2; version 1 has memory.limit_in_bytes and memory.usage_in_bytes, and counts no stalls.
//
//   less than a reserve is left                      -> records leave until two reserves are left
//   tasks stalled for memory 10 % of the last 10 s   -> an eighth of the records leaves, at most every 10 s
//     and memory.current is a reserve from the limit
//   neither for 30 s, stalls below 1 %, and more     -> an eighth of the records comes back, but two reserves
//     than two reserves are left                        stay free
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <terrace/base/clock.h>

namespace terrace {

// One look at a memory cgroup with a limit.
struct CgroupMemory {
  std::string cgroup;          // "/job7"
  uint64_t limit_bytes = 0;    // the lower one of memory.max and memory.high
  uint64_t current_bytes = 0;  // memory.current
  uint64_t held_bytes = 0;     // current_bytes without the pages of files, which the kernel can drop
  double stalled_percent = 0;  // "full avg10" of memory.pressure; 0 if the kernel does not count it

  uint64_t left_bytes() const { return held_bytes < limit_bytes ? limit_bytes - held_bytes : 0; }
  uint64_t reserve_bytes() const { return limit_bytes / 16; }
};

// Returns the cgroup with the least memory left among this process's cgroup and its ancestors with a limit;
// none without a limit. proc/ and sys/ lie in `root`. A file that cannot be read counts as absent.
std::optional<CgroupMemory> read_cgroup_memory(const std::filesystem::path& root = "/");

// The records in host memory, which can be given back.
struct HostRecords {
  uint32_t kept_chunks = 0;
  uint32_t most_chunks = 0;  // the most without pressure
  uint64_t chunk_bytes = 1;
};

struct PressureDecision {
  uint32_t keep_chunks = 0;
  std::string reason;  // in words for the log
};

// The rule alone. One thread uses it; times never go back.
class PressureRule {
 public:
  std::optional<PressureDecision> decide(const CgroupMemory& memory, const HostRecords& records,
                                         uint64_t now_ns);

 private:
  std::optional<uint64_t> shrunk_ns_;  // when stalls last made records leave
  uint64_t busy_ns_ = 0;               // time of the last sign of pressure or the last change
};

class MemoryPressure {
 public:
  // `clock` outlives this.
  MemoryPressure(std::filesystem::path root, const Clock& clock) : root_(std::move(root)), clock_(clock) {}

  // Call between any two steps; most calls do not read the cgroup.
  std::optional<PressureDecision> look(const HostRecords& records);

 private:
  const std::filesystem::path root_;
  const Clock& clock_;
  PressureRule rule_;
  std::optional<uint64_t> looked_ns_;
};

}  // namespace terrace
