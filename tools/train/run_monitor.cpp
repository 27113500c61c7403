#include "train/run_monitor.h"

#include <chrono>

#include "train/step_log.h"

namespace terrace {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunMonitor::RunMonitor(const TrainConfig& config, const Trainer& trainer, bool resumed)
    : trainer_(trainer), monitor_(config, {trainer.consumed_samples(), resumed, wall_seconds()}) {}

void RunMonitor::step_done(const StepReport& report) {
  UpdateScalars scalars;
  scalars.samples = trainer_.consumed_samples();
  scalars.loss = report.loss;
  scalars.learning_rate = report.learning_rate;
  scalars.gradient_norm = report.gradient_norm;
  scalars.loss_scale = report.loss_scale;
  scalars.skipped = report.skipped;
  scalars.forward_seconds = seconds(report.forward_ns);
  scalars.backward_seconds = seconds(report.forward_backward_ns - report.forward_ns);
  scalars.update_seconds = seconds(report.update_ns);
  monitor_.update(scalars, wall_seconds());
}

void RunMonitor::evaluated(uint64_t, double loss) {
  monitor_.evaluation(trainer_.consumed_samples(), loss, wall_seconds());
}

}  // namespace terrace
