// StepBoundary: brings the state to a step boundary. Every reader or replacement of the state between two
// steps comes through here: a running update is finished first, and a commit that waits for it is begun. The
// step thread uses it.
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

  // Sets the action at the end of an update that ran beside the step thread. Its argument is true if the
  // state is whole, false if the update failed.
  void on_update_over(std::function<void(bool is_whole)> action) { on_update_over_ = std::move(action); }

  bool is_updating() const { return updates_.is_running(); }
  // Waits for the running update of the step before and throws its failure. An update that the step in
  // progress runs as it goes backward (during_backward) goes on: it ends with the step.
  void finish_update();
  // Demands that nothing is open; an update may be running. Throws Error(cancelled); `action` begins its
  // message, as in "cannot commit".
  void require_nothing_open(std::string_view action) const { order_.require_nothing_open(action); }
  // Demands that a step is open whose micro-batches are over.
  void require_whole_step(std::string_view action) const { order_.require_whole_step(action); }
  // Demands that nothing is open, and finishes a running update. Throws Error(cancelled).
  void require_rest(std::string_view action);
  // Calls require_rest() and returns the proof of a whole state. Throws Error(cancelled).
  const WholeState& whole(std::string_view action);
  // Demands, for the begin of a step, that nothing is open and that the state is whole or an update is
  // running.
  void require_whole_or_updating(std::string_view action) const;

  // --- A step changes the state from its first gradient on ---
  void begin_step() { step_changes_state_ = false; }
  bool step_changes_state() const { return step_changes_state_; }
  void begin_change();
  // Ends the step, which has left a whole state or not.
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
