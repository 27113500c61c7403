// The exact optimum where all sizes are equal and nothing has to be written back: sweeping through cycle
// after cycle, whenever too much would stay, what is needed last goes (L. A. Belady, 1966, with bypass; that
// this keeps the most arcs where the room changes over time is the usual exchange of intervals). It is
// optimal over any number of cycles, so once it repeats itself its average is the least that can be.
#pragma once

#include <cstdint>

#include <terrace/sim/internal/keep_problem.h>

namespace terrace::sim {

struct CycleAverage {
  uint64_t bytes = 0;  // of all cycles together
  uint32_t cycles = 1;
  bool steady = true;  // else the cycles are many, and nothing repeated

  double per_cycle() const { return static_cast<double>(bytes) / cycles; }
};

// `problem.equal_and_clean()`.
CycleAverage belady_optimum(const KeepProblem& problem);

}  // namespace terrace::sim
