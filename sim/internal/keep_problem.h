// KeepProblem: the placement problem of a level as arcs. Between two uses an item either stays (its arc is
// kept) or goes and comes back. Only the room in each slot and the bytes that each arc saves are left of the
// schedule; a plan is a set of kept arcs. Bounds and plans work on this.
//
// Bytes of a plan that is repeated = fixed_bytes + bytes of every arc that is not kept + bytes of every write
// that has an arc that is not kept.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/sim/internal/level_replay.h>

namespace terrace::sim {

inline constexpr uint32_t kNoWrite = UINT32_MAX;

struct KeepArc {
  uint32_t item;
  uint32_t moment, touch;  // the touch at which it begins
  uint64_t bytes;          // the room that it takes while it lasts, and the load that it saves
  // The arc needs room in the slots [first, last); slots beyond slots() are in the next cycle, modulo
  // slots().
  uint32_t first, last;
  // The write of bytes that changed at or before the beginning of the arc and are not below yet: they are
  // written down once, unless all arcs of that write are kept. kNoWrite when no write depends on this arc.
  uint32_t write;
};

struct KeepWrite {
  uint64_t bytes;
  std::vector<uint32_t> arcs;  // not empty
};

// Slot 2m is moment m, and slot 2m + 1 the time until the next one. At moment m an arc that begins or ends
// there needs no room of its own, because free_bytes excludes the items held there.
struct KeepProblem {
  std::vector<uint64_t> free_bytes;  // by slot
  std::vector<KeepArc> arcs;
  std::vector<KeepWrite> writes;
  uint64_t fixed_bytes = 0;
  uint32_t step_count = 1;

  uint32_t slots() const { return static_cast<uint32_t>(free_bytes.size()); }
  bool equal_and_clean() const;
};

KeepProblem keep_problem(const CacheLevel& level);

// `kept` is a plan: whether each arc is kept.
uint64_t bytes_of(const KeepProblem& problem, const std::vector<bool>& kept);
bool fits(const KeepProblem& problem, const std::vector<bool>& kept);
KeepPlan plan_of(const CacheLevel& level, const KeepProblem& problem, const std::vector<bool>& kept);

}  // namespace terrace::sim
