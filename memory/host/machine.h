// What this machine, container and user offer, read from /proc and /sys, and the budgets that follow when
// none are given. It only looks: it must never change a setting. Every function takes the root under which
// proc/ and sys/ lie, so that tests can describe any machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// A number and where it comes from, in words for the user.
struct SourcedBytes {
  uint64_t bytes = 0;
  std::string origin;       // "MemAvailable of /proc/meminfo", "memory.max of cgroup /job7"
  bool is_cgroups = false;  // the kernel ends a process of the cgroup that takes more, whatever is free
};

struct Machine {
  SourcedBytes memory_limit;  // the least of the cgroup limits (v1 and v2, all ancestors) and MemAvailable
  std::optional<uint64_t> memlock_limit_bytes;  // how much may be locked; none: without limit
  std::vector<uint32_t> cores;  // that this process may run on (affinity and cpuset), ascending
  uint64_t page_bytes = 0;
  std::string
      huge_page_mode;  // of anonymous memory: "always", "madvise", "never", or "none" when not built in
  uint64_t huge_page_bytes = 0;  // 0 when there are none

  bool huge_pages_on_request() const { return huge_page_mode == "always" || huge_page_mode == "madvise"; }
};

// Throws Error(io) naming the file when /proc does not have what every Linux has.
Machine probe_machine(const std::string& root = "/");

struct DefaultBudget {
  uint64_t bytes = 0;  // a multiple of 2 MiB
  std::string origin;  // "80 % of 23.2 GiB (MemAvailable of /proc/meminfo)"
};

// 80 % of the memory limit.
DefaultBudget default_host_budget(const Machine& machine);
// The most a simulated device takes at first without being told: 25 % of the memory limit. The plan may need
// less, and where it needs more it takes that of the host's.
DefaultBudget largest_simulated_device_budget(const Machine& machine);

// What the operating system says is in use, for comparison with the ledgers.
struct MemoryUse {
  uint64_t pss_bytes = 0;  // this process: its pages, shared ones in proportion; 0: the system does not say
  // All processes of this process's memory cgroup: anonymous and shared memory; none when there is no such
  // cgroup.
  std::optional<uint64_t> cgroup_anon_and_shmem_bytes;
};
MemoryUse current_memory_use(const std::string& root = "/");

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}. Throws Error(io) naming `file` on anything else.
std::vector<uint32_t> parse_cpu_list(const std::string& text, const std::string& file);

}  // namespace terrace
