#include <terrace/runtime/observe/monitor/run_monitor.h>

#include <chrono>

namespace terrace {
namespace {

constexpr double kSecondsPerNs = 1e-9;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunMonitor::RunMonitor(const MonitorSettings& settings, uint64_t samples, bool resumed)
    : samples_(samples), monitor_(settings, {samples, resumed, wall_seconds()}) {}

void RunMonitor::step_done(const StepReport& report) {
  UpdateScalars scalars;
  samples_ = report.samples;
  scalars.samples = report.samples;
  scalars.loss = report.loss;
  scalars.learning_rate = report.learning_rate;
  scalars.gradient_norm = report.gradient_norm;
  scalars.loss_scale = report.loss_scale;
  scalars.skipped = report.skipped;
  scalars.forward_seconds = kSecondsPerNs * static_cast<double>(report.forward_ns);
  scalars.backward_seconds =
      kSecondsPerNs * static_cast<double>(report.forward_backward_ns - report.forward_ns);
  scalars.update_seconds = kSecondsPerNs * static_cast<double>(report.update_ns);
  monitor_.update(scalars, wall_seconds());
}

void RunMonitor::evaluated(uint64_t, double loss) {
  monitor_.evaluation(samples_, loss, wall_seconds());
}

}  // namespace terrace
