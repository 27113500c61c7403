// CommitCadence: when the state is committed again. It decides by steps and by time alone, and at most
// once a step.
#pragma once

#include <cstdint>

#include <terrace/base/clock.h>

namespace terrace {

class CommitCadence {
 public:
  // 0: that does not decide; both 0: never due. Time begins now; `clock` outlives this.
  CommitCadence(uint64_t every_steps, uint64_t every_seconds, const Clock& clock);

  // The state of so many steps is being committed, or is: both counts begin again.
  void begun(uint64_t step);
  // Whether the state of so many steps shall be committed.
  bool due(uint64_t step) const;

 private:
  uint64_t every_steps_;
  uint64_t every_ns_;
  const Clock& clock_;
  uint64_t last_step_ = 0;
  uint64_t last_ns_;
};

}  // namespace terrace
