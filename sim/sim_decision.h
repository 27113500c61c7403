// SimDecision: one line of a simulation's decision log, and the log of one tier.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace {

enum class SimDecisionKind : uint8_t {
  load,        // comes up, and stays for now
  make,        // gets a place, and its bytes are made there
  drop,        // leaves; what is below is as new, or nobody needs it
  write_back,  // leaves, and its bytes go down
  flush,       // its bytes go down, and it stays
  stream_in,   // comes up through staging and does not stay
  stream_out,  // goes down through staging
};
std::string_view name_of(SimDecisionKind kind);

struct SimDecision {
  uint32_t cycle;   // counts from 0
  uint32_t moment;  // of the cycle
  uint32_t item;
  SimDecisionKind kind;

  bool operator==(const SimDecision&) const = default;
};

// The decisions of a tier from the empty beginning until everything repeats. A cycle is as many steps as the
// tier above takes to repeat itself; at the top, one.
struct SimLevelLog {
  std::vector<SimDecision> decisions;  // of all cycles: those before the period, then the period
  uint32_t first_cycle = 0;            // of the period
  uint32_t cycle_count = 1;            // of the period
  bool steady = true;  // else nothing repeated, and the period is the last cycles that were looked at

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
