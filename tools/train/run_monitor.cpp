#include "train/run_monitor.h"

#include <fmt/format.h>

#include <chrono>

namespace terrace {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds(uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

RunMonitor::RunMonitor(const TrainConfig& config, const Trainer& trainer, bool resumed, RunReport& report)
    : trainer_(trainer),
      monitor_(config, {trainer.consumed_samples(), resumed, wall_seconds()}),
      report_(report) {}

void RunMonitor::step(const StepReport& report) {
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
  report_.step(report);
}

void RunMonitor::evaluation(double loss) {
  monitor_.evaluation(trainer_.consumed_samples(), loss, wall_seconds());
  report_.evaluation(trainer_.completed_steps(), loss);
}

std::string time_line(const StepReport& report) {
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const OffloadCounters& moved = report.moved;
  std::string parts;
  for (const TimeCause cause : kTimeCauses)
    parts += fmt::format("{}{} {:.2f}", parts.empty() ? "" : ", ", name_of(cause), ms(moved.time[cause]));
  return fmt::format("step {}: time (ms) | fwd: {:.2f} | bwd: {:.2f} | step: {:.2f} | {}", report.step,
                     ms(report.forward_ns), ms(report.forward_backward_ns - report.forward_ns),
                     ms(report.update_ns), parts);
}

}  // namespace terrace
