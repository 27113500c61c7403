// StepBoundary: whether the state is that of a step boundary, and what must end before it is. Whatever reads
// or replaces the state between two steps comes through here: the update that is still running is finished
// first, and the commit that waits for it is begun. Used by the step thread.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/state/call_order.h>
#include <terrace/offload/update/update_runner.h>

namespace terrace {

class StepBoundary {
 public:
  // All references outlive this.
  StepBoundary(const CallOrder& order, StateCustody& custody, UpdateRunner& updates)
      : order_(order), custody_(custody), updates_(updates) {}

  // Called when an update that ran beside the step thread has ended: with true the state is whole, with false
  // the update has failed.
  void on_update_over(std::function<void(bool is_whole)> action) { on_update_over_ = std::move(action); }

  bool is_updating() const { return updates_.is_running(); }
  // Waits for a running update, and throws what it failed with.
  void finish_update();
  // Nothing is open, but an update may be running. Throws Error(cancelled); `action` is what needs it, as in
  // "cannot commit".
  void require_nothing_open(std::string_view action) const { order_.require_nothing_open(action); }
  // Nothing is open, and a running update is finished first. Throws Error(cancelled).
  void require_rest(std::string_view action);
  // As require_rest(), and the state is whole.
  const WholeState& whole(std::string_view action);
  // The same at the begin of a step, which an update may go on beside.
  void require_whole_or_updating(std::string_view action) const;

  // --- A step changes the state from its first gradient on ---
  void begin_step() { step_changes_state_ = false; }
  bool step_changes_state() const { return step_changes_state_; }
  void begin_change();
  // The step is over, and has left a whole state or not.
  void end_step(bool is_whole);

  StateCustody& custody() { return custody_; }

 private:
  const CallOrder& order_;
  StateCustody& custody_;
  UpdateRunner& updates_;
  std::function<void(bool)> on_update_over_;
  bool step_changes_state_ = false;
};

}  // namespace terrace
