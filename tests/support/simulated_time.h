// Time of fault plans that is simulated: sleeping advances a clock.
#pragma once

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/clock.h>

namespace terrace::io {

// Blocking calls simulate time and take none. `clock` must outlive the plan.
inline FaultTime simulated_time(FakeClock& clock) {
  return FaultTime{&clock, [&clock](uint64_t ns) { clock.advance_to(ns); }};
}

}  // namespace terrace::io
