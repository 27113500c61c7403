// RunMonitor: writes the scalars of a run to the files of the configuration's monitors.
#pragma once

#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/monitor/monitor.h>

namespace terrace {

class RunMonitor final : public RunObserver {
 public:
  // The run goes on behind so many sequences. Throws Error(config) and Error(io).
  RunMonitor(const MonitorSettings& settings, uint64_t samples, bool resumed);

  void step_done(const StepReport& report) override;
  void evaluated(uint64_t step, double loss) override;

 private:
  uint64_t samples_;
  Monitor monitor_;
};

}  // namespace terrace
