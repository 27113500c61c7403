// The least bytes that a link has to move in a step, under any policy.
#pragma once

#include <cstdint>
#include <string_view>

#include <terrace/sim/sim_schedule.h>

namespace terrace {

enum class BoundKind : uint8_t {
  exact,  // equal sizes and nothing to write back: Belady's rule over the repeated step, which attains it
  exhaustive,  // the best plan of all, by branch and bound
  flow,        // a flow of least cost, in which a part of an item may stay
};
std::string_view name_of(BoundKind kind);

struct LowerBound {
  BoundKind kind = BoundKind::flow;
  double bytes_per_step = 0;  // both directions together
};

// Returns the bound of the link below `tier`. The tiers above the link count as one with the memory of all,
// so a policy that keeps an item in two of them at once is above the bound. Every schedule that passes
// check_simulation() has a bound.
LowerBound lower_bound(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier);

}  // namespace terrace
