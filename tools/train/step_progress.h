// StepProgress: the progress of a run for a person at the terminal: the progress line, evaluations, skipped
// steps and, with wall_clock_breakdown, the times of a step.
#pragma once

#include <cstdint>

#include <terrace/base/clock.h>
#include <terrace/runtime/observe/log/run_observer.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/train_summary.h"

namespace terrace {

class StepProgress final : public RunObserver {
 public:
  // `summary` observes the run before this object does. All arguments outlive it.
  StepProgress(const TrainFlags& flags, const TrainConfig& config, const RunSummary& summary,
               Console& console);

  void step_done(const StepReport& report) override;
  void evaluated(uint64_t step, double loss) override;

 private:
  void show(const StepReport& report);

  const TrainFlags& flags_;
  const TrainConfig& config_;
  const RunSummary& summary_;
  Console& console_;
  const SteadyClock clock_;
  const uint64_t lines_every_;
  uint64_t line_ns_ = 0;     // when the last progress line was written
  double mean_seconds_ = 0;  // mean seconds of a step
};

}  // namespace terrace
