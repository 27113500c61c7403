// Replays a schedule on a machine under a policy: bytes of every link, and how long the step waits for them.
// Deterministic: the same schedule, machine and policy give the same decisions and the same numbers.
//
// Model. A tier keeps copies of what lives below it; its memory is what homes and occupied bytes leave. Tier
// 0 holds all items of a use together while it computes. In the tiers below, items pass through staging
// (which belongs to the occupied bytes) and take room only when they stay. A tier's decisions depend on what
// the tier above asks of it, never the other way round. What is dirty is written down when it leaves, or when
// a tier below needs it; bytes that will be made anew are not. The step is repeated until the state at its
// end repeats, and what is reported is the mean over that period.
//
// Policies are those of memory/space/eviction_policy.h, but for three things. opt is a plan of what stays
// between which uses, made of the whole step with sizes and the cost of what has to be written back, or
// Belady's rule with wrap-around and bypass where that moves no more. A chunk of patrickstar has one place,
// so what leaves is always copied. gemini and patrickstar know the schedule from the second cycle on.
//
// Time. Uses compute one after the other, in whichever tier. Each direction of each link moves one item after
// the other, all at once with computing. What a use needs may come up to prefetch_depth uses ahead of it:
// into tier 0 as far as there is room, and never before what has to make room has gone down.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/memory/space/eviction_policy.h>
#include <terrace/sim/sim_decision.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

// Per step.
struct SimTraffic {
  double up_bytes = 0, down_bytes = 0;
  double up_count = 0, down_count = 0;
  double busy_up_ns = 0, busy_down_ns = 0;

  double bytes() const { return up_bytes + down_bytes; }
  bool operator==(const SimTraffic&) const = default;
};

struct SimResult {
  std::vector<SimTraffic> links;
  std::vector<SimLevelLog> log;  // of the tiers above each link
  uint64_t period_steps = 1;     // after which everything repeats
  bool steady = true;            // else it did not within what was looked at, and the means are of that
  double step_ns = 0;            // mean
  double compute_ns = 0;         // of it
  double stall_ns() const { return step_ns - compute_ns; }

  bool operator==(const SimResult&) const = default;
};

// Throws what check_simulation throws.
SimResult simulate(const SimSchedule& schedule, const SimMachine& machine, PolicyKind policy);

// The result that the decisions of `log` have, without any policy. A log that is not of this schedule and
// these capacities is a programmer's mistake.
SimResult replay_decisions(const SimSchedule& schedule, const SimMachine& machine,
                           const std::vector<SimLevelLog>& log);

}  // namespace terrace
