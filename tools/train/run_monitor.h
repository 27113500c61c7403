// RunMonitor: what is shown of a run beside its progress and its log: the scalars of the configuration's
// monitors, the page of --report, and the times of wall_clock_breakdown as one line.
#pragma once

#include <string>

#include <terrace/runtime/observe/monitor/monitor.h>
#include <terrace/runtime/train/trainer.h>

#include "train/run_report.h"

namespace terrace {

class RunMonitor {
 public:
  // `trainer` stands where the run goes on; both it and `report` outlive the monitor. Throws Error(config)
  // and Error(io).
  RunMonitor(const TrainConfig& config, const Trainer& trainer, bool resumed, RunReport& report);

  void step(const StepReport& report);
  void finished(const FinishedUpdate& update) { report_.finished(update); }
  void evaluation(double loss);
  void kept(const KeptState& kept) { report_.kept(kept); }
  void picture(std::optional<StepPicture> picture) { report_.picture(std::move(picture)); }

 private:
  const Trainer& trainer_;
  Monitor monitor_;
  RunReport& report_;
};

// "time (ms) | fwd: 12.30 | bwd: 24.60 | step: 5.10 | ...", with DeepSpeed's names, and the waits that are
// part of these times.
std::string time_line(const StepReport& report);

}  // namespace terrace
