// CommitCadence decides when the state is committed again. It looks only at steps and time, and is due at
// most once a step.
#pragma once

#include <cstdint>

#include <terrace/base/clock.h>

namespace terrace {

class CommitCadence {
 public:
  // A limit of 0 does not count; with both 0 it is never due. Time begins now; `clock` outlives this.
  CommitCadence(uint64_t every_steps, uint64_t every_seconds, const Clock& clock);

  // Call when the state at `step` is committed or being committed: both counts start again.
  void begun(uint64_t step);
  // True if the state at `step` shall be committed.
  bool due(uint64_t step) const;

 private:
  uint64_t every_steps_;
  uint64_t every_ns_;
  const Clock& clock_;
  uint64_t last_step_ = 0;
  uint64_t last_ns_;
};

}  // namespace terrace
