#include <terrace/runtime/observe/page/run_record.h>

#include <utility>

namespace terrace {

std::string_view key_of(RunState state) {
  switch (state) {
    case RunState::starting:
      return "starting";
    case RunState::running:
      return "running";
    case RunState::complete:
      return "complete";
    case RunState::stopped:
      return "stopped";
    case RunState::failed:
      return "failed";
  }
  return "";
}

bool is_predicted(const PlanPrediction& prediction, uint64_t nth, const StepReport& report) {
  return nth >= prediction.repeats_from_step && !report.skipped &&
         report.update_mode == prediction.update_mode;
}

void RunRecord::step(const StepReport& report) {
  series_.add(report);
  all_.add(report);
  if (header.prediction && is_predicted(*header.prediction, all_.count, report)) {
    ++predicted_.steps;
    predicted_.moved = predicted_.moved + report.moved;
  } else if (header.prediction && report.update_mode != header.prediction->update_mode) {
    ++predicted_.of_other_modes;
  }
  last_step_ = report;
  state_ = RunState::running;
  log_.set_completed_steps(report.step);
}

void RunRecord::finished(const FinishedUpdate& update) {
  rest_.ns += update.ns;
  rest_.moved = rest_.moved + update.moved;
}

void RunRecord::set_state(RunState state, std::string text) {
  state_ = state;
  state_text_ = std::move(text);
}

}  // namespace terrace
