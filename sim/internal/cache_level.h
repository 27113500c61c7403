// CacheLevel: the uses of the items of one bounded tier during a cycle of steps, under any policy. Policies
// and lower bounds read the same description. It decides nothing.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/sim/sim_schedule.h>

namespace terrace::sim {

enum class TouchKind : uint8_t {
  read,
  change,          // read and written
  make,            // written without being read
  foreign_read,    // read in a tier below: newer bytes here have to be there first
  foreign_change,  // read and written below: the copy here is worthless afterwards
  foreign_make,    // written below without being read: the copy here was worthless already
};

constexpr bool is_foreign(TouchKind kind) {
  return kind >= TouchKind::foreign_read;
}
constexpr bool needs_load(TouchKind kind) {
  return kind == TouchKind::read || kind == TouchKind::change;
}
constexpr bool makes_dirty(TouchKind kind) {
  return kind == TouchKind::change || kind == TouchKind::make;
}
constexpr bool overwrites(TouchKind kind) {
  return kind == TouchKind::make || kind == TouchKind::foreign_make;
}

struct Touch {
  uint32_t item;
  TouchKind kind;
};

struct Moment {
  uint32_t step;  // its number in the cycle
  uint32_t use;   // the use of the schedule that causes it
  // All items touched here are in the tier together; else they go through staging one by one, and need a
  // place only when they stay.
  bool holds;
  uint64_t capacity_bytes;     // for the items of this level at this moment
  std::vector<Touch> touches;  // ascending by item, each item once
};

struct CacheLevel {
  std::vector<uint64_t> item_bytes;  // by item of the schedule, whether it comes here or not
  std::vector<Moment> moments;
  uint32_t step_count = 1;  // the steps of a cycle, after which the moments begin anew
};

// The transfers that one level asks of the next at one of its moments.
struct Traffic {
  uint32_t use;
  std::vector<uint32_t> loads;         // items that come up for the use
  std::vector<uint32_t> writes;        // items that go down before the use, whole
  std::vector<uint32_t> writes_after;  // items that go down after the use, which used them itself
};

// Returns the level of `tier`, below a level that asks for `above_by_step[s]` in step s, in the order of its
// uses; for tier 0 that is one empty step. Each step of `above_by_step` is a step of the level.
CacheLevel level_below(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier,
                       const std::vector<std::vector<Traffic>>& above_by_step);

// Returns the tiers 0 to `tier` as one level with the memory of all: no placement of items in them can make
// the traffic with the tiers below less than that of this level. A tier's memory counts only as far as items
// come there: an item never comes into a tier above the tiers that use it.
CacheLevel merged_level(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier);

}  // namespace terrace::sim
