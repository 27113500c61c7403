// StepProgress: what a person at the terminal sees of a run: the line of progress, evaluations, skipped steps
// and, with wall_clock_breakdown, the times of a step.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/clock.h>
#include <terrace/runtime/observe/log/run_observer.h>

#include "console.h"
#include "flags/train_flags.h"

namespace terrace {

class StepProgress final : public RunObserver {
 public:
  // All outlive this.
  StepProgress(const TrainFlags& flags, const TrainConfig& config, Console& console);

  void step_done(const StepReport& report) override;
  void update_finished(const FinishedUpdate& update) override;
  void evaluated(uint64_t step, double loss) override;

 private:
  void show(const StepReport& report);

  const TrainFlags& flags_;
  const TrainConfig& config_;
  Console& console_;
  const SteadyClock clock_;
  const uint64_t lines_every_;
  uint64_t line_ns_ = 0;     // of the last line of progress
  uint64_t steps_ = 0;       // of this run
  double mean_seconds_ = 0;  // of a step
  OffloadCounters moved_;    // since the run began
  std::optional<double> held_out_loss_;
};

}  // namespace terrace
