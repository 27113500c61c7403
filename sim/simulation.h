// simulate(): replays a schedule on a machine under a policy, and counts the bytes of every link and the time
// that the step waits for them. It is deterministic: the same schedule, machine and policy give the same
// decisions and the same numbers.
//
// Model. A tier keeps copies of items that live below it, in the memory that homes and occupied bytes leave.
// Tier 0 holds all items of a use together while it computes. In the tiers below, items pass through staging
// (which belongs to the occupied bytes) and take room only when they stay. A tier's decisions depend on the
// transfers that the tier above asks of it, never the other way round. A dirty item is written down when it
// leaves, or when a tier below needs it, unless its bytes will be made anew. The step is repeated until the
// state at its end repeats, and the results are means over that period.
//
// Policies. Those of memory/space/eviction_policy.h serve here too, but for three things. opt is a plan of
// which items stay between which uses, made from the whole step with sizes and the cost of writing back, or
// Belady's rule with wrap-around and bypass where that moves no more. A chunk of patrickstar has one place,
// so a chunk that leaves is always copied. gemini and patrickstar know the schedule from the second cycle on.
// Beside them there are rules for comparison that know no schedule: the item leaves whose last use is longest
// ago (lru), that arrived longest ago (fifo), or that was used last (mru).
//
// Time. Uses compute one after the other, in whichever tier. Each direction of each link moves one item after
// the other; all links work at once with computing. The items of a use may come up to prefetch_depth uses
// ahead of it: into tier 0 as far as there is room, and never before the items that make room have gone down.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/sim/sim_decision.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

enum class SimPolicy : uint8_t { opt, lru, fifo, mru, gemini, patrickstar };
std::span<const SimPolicy> sim_policies();
std::string_view name_of(SimPolicy policy);
std::optional<SimPolicy> sim_policy_from_name(std::string_view name);

// The traffic of a link per step.
struct SimTraffic {
  double up_bytes = 0, down_bytes = 0;
  double up_count = 0, down_count = 0;
  double busy_up_ns = 0, busy_down_ns = 0;

  double bytes() const { return up_bytes + down_bytes; }
  bool operator==(const SimTraffic&) const = default;
};

struct SimResult {
  std::vector<SimTraffic> links;
  std::vector<SimLevelLog> log;  // by link: the decisions of the tier above it
  uint64_t period_steps = 1;     // everything repeats after so many steps
  bool steady = true;  // false: nothing repeated, and the means are over the last cycles that were simulated
  double step_ns = 0;  // mean
  double compute_ns = 0;  // the part of step_ns spent computing
  double stall_ns() const { return step_ns - compute_ns; }

  bool operator==(const SimResult&) const = default;
};

// Throws the errors of check_simulation().
SimResult simulate(const SimSchedule& schedule, const SimMachine& machine, SimPolicy policy);

}  // namespace terrace
