// The exact optimum where all sizes are equal and nothing has to be written back. It sweeps through cycle
// after cycle; whenever too much would stay, the item needed last goes (L. A. Belady, 1966, with bypass; an
// exchange of intervals shows that this keeps the most arcs even where the room changes over time). It is
// optimal over any number of cycles, so once it repeats itself its average is the least possible.
#pragma once

#include <cstdint>

#include <terrace/sim/internal/keep_problem.h>

namespace terrace::sim {

struct CycleAverage {
  uint64_t bytes = 0;  // bytes of all cycles together
  uint32_t cycles = 1;
  bool steady = true;  // false: nothing repeated in many cycles

  double per_cycle() const { return static_cast<double>(bytes) / cycles; }
};

// `problem.equal_and_clean()` must hold.
CycleAverage belady_optimum(const KeepProblem& problem);

}  // namespace terrace::sim
