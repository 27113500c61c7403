// What the clocks of two hosts show at one moment, as ranks find out by ballots.
#pragma once

#include <cstdint>

#include <terrace/base/clock.h>
#include <terrace/comm/operations/communicator.h>

namespace terrace {

struct FirstClock {
  uint64_t now_ns = 0;    // of the first rank, when it asked; as this rank's clock would have shown it
  uint64_t error_ns = 0;  // it may be so much earlier or later; 0 on the first rank's host
};

// The clocks of one host are one. Every rank calls it, and nothing of the control lane is under way.
FirstClock clock_of_first(Communicator& ranks, const Clock& clock);

}  // namespace terrace
