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

void RunRecord::step(const StepReport& report) {
  series_.add(report);
  all_.add(report);
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
