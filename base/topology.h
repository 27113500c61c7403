// Topology: the processors that this process may use, how they share cores and memory nodes, and which of
// them compute threads are bound to. It reads /proc, /sys and the affinity of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct Cpu {
  uint32_t id = 0;
  uint32_t core = 0;  // the lowest id among the hardware threads of its core
  uint32_t node = 0;  // its memory node

  bool operator==(const Cpu&) const = default;
};

// The processor that each thread is bound to, if any, and the reason.
struct Binding {
  std::vector<uint32_t> cpus;  // by thread index; empty: not bound
  std::string reason;          // in words: "one per core, over 2 memory nodes", "one memory node, ..."
};

struct Topology {
  std::vector<Cpu> cpus;  // those that this process may run on, ascending; at least one
  uint32_t quota = 0;     // whole processors that its cgroups give it, rounded up; 0: no limit

  std::vector<uint32_t> nodes() const;  // the memory nodes of `cpus`, ascending
  size_t core_count() const;
  // Returns one thread per processor, but no more than the quota.
  size_t default_thread_count() const;
  // Gives threads processors of their own where that keeps apart what the system's scheduler may mix up:
  // memory nodes, or hardware threads of one core. The threads take one hardware thread per core first, node
  // by node, then the cores' other hardware threads. More threads than processors, or than the quota, are not
  // bound.
  Binding binding_for(size_t thread_count) const;
  // The part of process `index` of `count` that share these processors: whole cores, one node after the
  // other, in no other part. Where there are fewer cores than processes, each has all of them. Of the quota
  // each has its share, at least one.
  Topology part(size_t index, size_t count) const;
};

// Reads the machine under `root`, limited to the processors in `allowed`. Where /sys says nothing, every
// processor counts as a core of its own and all share one node.
Topology read_topology(const std::string& root, const std::vector<uint32_t>& allowed);
// Reads this machine, limited to the processors that this process may use.
Topology read_topology();

// Keeps the calling thread, and threads that it starts from now on, on these processors. Returns 0, or the
// errno with which the system refused.
int stay_on(const std::vector<Cpu>& cpus);

// Spreads the untouched pages of [memory, memory + bytes) over `nodes`, in turn, for memory that threads of
// all nodes use. Returns 0, or the errno with which the system refused: pages then lie where they are first
// touched.
int interleave_memory(void* memory, size_t bytes, const std::vector<uint32_t>& nodes);

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}; none for anything else.
std::optional<std::vector<uint32_t>> parse_number_list(std::string_view text);

}  // namespace terrace
