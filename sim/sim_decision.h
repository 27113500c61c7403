// SimDecision: one line of a simulation's decision log, and the log of one tier.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace {

enum class SimDecisionKind : uint8_t {
  load,        // the item comes up, and stays for now
  make,        // the item gets a place, and its bytes are made there
  drop,        // the item leaves; its copy below is as new, or its bytes are not needed
  write_back,  // the item leaves, and its bytes go down
  flush,       // the item's bytes go down, and it stays
  stream_in,   // the item comes up through staging and does not stay
  stream_out,  // the item goes down through staging
};
std::string_view name_of(SimDecisionKind kind);

struct SimDecision {
  uint32_t cycle;   // counts from 0
  uint32_t moment;  // counts from 0 in the cycle
  uint32_t item;
  SimDecisionKind kind;

  bool operator==(const SimDecision&) const = default;
};

// The decisions of a tier from the empty beginning until everything repeats. A cycle has as many steps as the
// period of the tier above; at the top it is one step.
struct SimLevelLog {
  std::vector<SimDecision> decisions;  // of all cycles: those before the period, then the period
  uint32_t first_cycle = 0;            // number of the period's first cycle
  uint32_t cycle_count = 1;            // cycles in the period
  bool steady = true;  // false: nothing repeated, and the period is the last cycles that were simulated

  bool operator==(const SimLevelLog&) const = default;
};

constexpr bool comes_up(SimDecisionKind kind) {
  return kind == SimDecisionKind::load || kind == SimDecisionKind::stream_in;
}
constexpr bool goes_down(SimDecisionKind kind) {
  return kind == SimDecisionKind::write_back || kind == SimDecisionKind::flush ||
         kind == SimDecisionKind::stream_out;
}

}  // namespace terrace
