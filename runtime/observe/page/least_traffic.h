// LeastTraffic: the least bytes that the steps of a run could have moved, as a mean of one step. In
// next_forward a step that follows another one gets its first parameters from the update of that step; the
// first step of a run, and the first after another mode, has to read them. A step behind an evaluation may
// find anything on the device that has room there. It looks at nothing itself.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/offload/offloader.h>

namespace terrace {

class LeastTraffic {
 public:
  // One more step, whose update ran in this mode.
  void add(UpdateMode mode);
  // The next step finds what an evaluation has left on the device.
  void add_evaluation() { evaluated_ = true; }
  // Of the steps until now, with the budgets as they are; before the first one, of a step that follows
  // another.
  TrafficBound per_step(const Offloader& offloader) const;

 private:
  std::optional<UpdateMode> last_mode_;
  uint64_t steps_ = 0;
  uint64_t following_ = 0;  // of these, behind an update that was still to come
  uint64_t behind_evaluation_ = 0;
  bool evaluated_ = false;
};

}  // namespace terrace
