// LeastTraffic: the least bytes that the steps of a run could have moved, as a mean per step. In next_forward
// a step gets its first parameters from the update of the step before. The first step of a run, and the first
// after another mode, must read them. A step after an evaluation may find anything on the device that has
// room there. The class observes nothing itself.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/offload/offloader.h>

namespace terrace {

class LeastTraffic {
 public:
  // Adds a step whose update ran in this mode.
  void add(UpdateMode mode);
  // Call after an evaluation: the next step finds on the device what it has left there.
  void add_evaluation() { evaluated_ = true; }
  // Returns the mean of all steps so far, with the present budgets; before the first step, the bound of a
  // step that follows another.
  TrafficBound per_step(const Offloader& offloader) const;

 private:
  std::optional<UpdateMode> last_mode_;
  uint64_t steps_ = 0;
  uint64_t following_ = 0;  // steps behind a pending update
  uint64_t behind_evaluation_ = 0;
  bool evaluated_ = false;
};

}  // namespace terrace
