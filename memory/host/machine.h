// Machine: the resources of this machine, container and user, read from /proc and /sys, and the default
// budgets that follow. It only looks and must never change a setting. Every function takes the root under
// which proc/ and sys/ lie, so that tests can describe any machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// A number and its origin in words for the user.
struct SourcedBytes {
  uint64_t bytes = 0;
  std::string origin;       // "MemAvailable of /proc/meminfo", "memory.max of cgroup /job7"
  bool is_cgroups = false;  // the kernel ends a process of the cgroup that takes more, whatever is free
};

struct Machine {
  SourcedBytes memory_limit;  // the least of the cgroup limits (v1 and v2, all ancestors) and MemAvailable
  std::optional<uint64_t> memlock_limit_bytes;  // how much may be locked; none: without limit
  std::vector<uint32_t> cores;  // those that this process may run on (affinity and cpuset), ascending
  uint64_t page_bytes = 0;
  std::string
      huge_page_mode;  // for anonymous memory: "always", "madvise", "never", or "none" when not built in
  uint64_t huge_page_bytes = 0;  // 0 when there are none

  bool huge_pages_on_request() const { return huge_page_mode == "always" || huge_page_mode == "madvise"; }
};

// Throws Error(io) naming the file when /proc lacks something that every Linux has.
Machine probe_machine(const std::string& root = "/");

struct DefaultBudget {
  uint64_t bytes = 0;  // a multiple of 2 MiB
  std::string origin;  // "80 % of 23.2 GiB (MemAvailable of /proc/meminfo)"
};

// 80 % of the memory limit.
DefaultBudget default_host_budget(const Machine& machine);
// The most that a simulated device takes at first without an option: 25 % of the memory limit. The plan may
// need less; where it needs more, it takes that from the host's budget.
DefaultBudget largest_simulated_device_budget(const Machine& machine);

// The memory in use as the operating system sees it, for comparison with the ledgers.
struct MemoryUse {
  uint64_t pss_bytes = 0;  // pages of this process, shared ones in proportion; 0: not known
  // Anonymous and shared memory of all processes in this process's memory cgroup; none without such a cgroup.
  std::optional<uint64_t> cgroup_anon_and_shmem_bytes;
};
MemoryUse current_memory_use(const std::string& root = "/");

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}. Throws Error(io) naming `file` on anything else.
std::vector<uint32_t> parse_cpu_list(const std::string& text, const std::string& file);

}  // namespace terrace
