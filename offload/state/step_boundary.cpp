#include <terrace/offload/state/step_boundary.h>

namespace terrace {

// An update that runs while the step changes the state is the step's own. It takes gradients until the step
// ends: whoever ended it before would leave the rest of them without an update.
void StepBoundary::finish_update() {
  if (step_changes_state_ || !updates_.is_running()) return;
  try {
    updates_.wait();
  } catch (...) {
    if (on_update_over_) on_update_over_(false);
    throw;
  }
  custody_.end_change();
  if (on_update_over_) on_update_over_(true);
}

void StepBoundary::require_rest(std::string_view action) {
  order_.require_nothing_open(action);
  finish_update();
}

const WholeState& StepBoundary::whole(std::string_view action) {
  require_rest(action);
  return custody_.whole(action);
}

void StepBoundary::require_whole_or_updating(std::string_view action) const {
  order_.require_nothing_open(action);
  if (!updates_.is_running()) static_cast<void>(custody_.whole(action));
}

void StepBoundary::begin_change() {
  custody_.begin_change("a step");
  step_changes_state_ = true;
}

void StepBoundary::end_step(bool is_whole) {
  if (is_whole) custody_.end_change();
  step_changes_state_ = false;
}

}  // namespace terrace
