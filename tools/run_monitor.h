// RunMonitor: what the configuration wants to be shown of a run beside its progress and its log: the scalars
// of the monitors, and the times of wall_clock_breakdown as one line.
#pragma once

#include <string>

#include <terrace/runtime/monitor/monitor.h>
#include <terrace/runtime/trainer.h>

namespace terrace {

class RunMonitor {
 public:
  // `trainer`, which outlives the monitor, stands where the run goes on. Throws Error(config) and Error(io).
  RunMonitor(const TrainConfig& config, const Trainer& trainer, bool resumed);

  void step(const StepReport& report);
  void evaluation(double loss);

 private:
  const Trainer& trainer_;
  Monitor monitor_;
};

// "time (ms) | fwd: 12.30 | bwd: 24.60 | step: 5.10 | ...", with DeepSpeed's names, and the waits that are
// part of these times.
std::string time_line(const StepReport& report);

}  // namespace terrace
