// MemoryPressure: when a run gives host memory back before the kernel kills it, and when it takes some of it
// up again. It reads what the memory cgroup says of this process and decides how many records
// stay in host memory; it must never move any itself. Without a limit of memory it decides nothing.
//
// The rule, at most ten times a second and between two steps. The reserve is 1/16 of the limit; what is held
// is what the kernel cannot drop: memory.current without the pages of files. Named here are the files of
// version 2; version 1 has memory.limit_in_bytes and memory.usage_in_bytes, and counts no stalls.
//
//   less than a reserve is left                      -> records leave until two reserves are left
//   tasks stalled for memory 10 % of the last 10 s   -> an eighth of the records leaves, at most every 10 s
//     and memory.current is a reserve from the limit
//   neither for 30 s, stalls below 1 %, and more     -> an eighth of the records comes back, and never more
//     than two reserves are left                        than leaves two reserves
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
  uint64_t held_bytes = 0;     // of it, without the pages of files, which the kernel drops when it must
  double stalled_percent = 0;  // "full avg10" of memory.pressure; 0 where the kernel does not count it

  uint64_t left_bytes() const { return held_bytes < limit_bytes ? limit_bytes - held_bytes : 0; }
  uint64_t reserve_bytes() const { return limit_bytes / 16; }
};

// Of this process's cgroup and its ancestors with a limit, that with the least left; none without a limit.
// proc/ and sys/ lie in `root`. What cannot be read is taken not to be there.
std::optional<CgroupMemory> read_cgroup_memory(const std::filesystem::path& root = "/");

// What can be given back: records in host memory.
struct HostRecords {
  uint32_t kept_chunks = 0;
  uint32_t most_chunks = 0;  // that may be kept when there is no pressure
  uint64_t chunk_bytes = 1;
};

struct PressureDecision {
  uint32_t keep_chunks = 0;
  std::string reason;  // in words for the log
};

// The rule alone. Used by one thread; times never go back.
class PressureRule {
 public:
  std::optional<PressureDecision> decide(const CgroupMemory& memory, const HostRecords& records,
                                         uint64_t now_ns);

 private:
  std::optional<uint64_t> shrunk_ns_;  // for stalls
  uint64_t busy_ns_ = 0;               // the last sign of pressure, or the last change
};

class MemoryPressure {
 public:
  // `clock` outlives this.
  MemoryPressure(std::filesystem::path root, const Clock& clock) : root_(std::move(root)), clock_(clock) {}

  // To be asked between any two steps: most times it does not even look.
  std::optional<PressureDecision> look(const HostRecords& records);

 private:
  const std::filesystem::path root_;
  const Clock& clock_;
  PressureRule rule_;
  std::optional<uint64_t> looked_ns_;
};

}  // namespace terrace
