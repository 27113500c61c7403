// RunMonitor: writes the scalars of a run to the files of the configuration's monitors.
#pragma once

#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/monitor/monitor.h>
#include <terrace/runtime/train/trainer.h>

namespace terrace {

class RunMonitor final : public RunObserver {
 public:
  // The run goes on from where `trainer` stands; `trainer` outlives the monitor. Throws Error(config) and
  // Error(io).
  RunMonitor(const TrainConfig& config, const Trainer& trainer, bool resumed);

  void step_done(const StepReport& report) override;
  void evaluated(uint64_t step, double loss) override;

 private:
  const Trainer& trainer_;
  Monitor monitor_;
};

}  // namespace terrace
