#include "train/step_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/units.h>

#include "train/progress_line.h"

namespace terrace {
namespace {

constexpr uint64_t kLinesPerRun = 20;  // if progress is shown as lines and no interval is configured
constexpr double kSmoothing = 0.02;    // the newest step's least weight in the time that remains
constexpr uint64_t kLongestSilenceNs = 60'000'000'000;  // between two lines, if progress is shown as lines

// Returns the bytes moved since the run began: "h2d 1.20 d2h 0.40 nvme r 3.10 w 2.90 GB".
std::string moved_text(const OffloadCounters& moved) {
  const auto gigabytes = [](uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  return fmt::format(
      "h2d {:.2f} d2h {:.2f} nvme r {:.2f} w {:.2f} GB", gigabytes(moved.h2d_bytes),
      gigabytes(moved.d2h_bytes),
      gigabytes(moved.param_read_bytes + moved.record_read_bytes + moved.gradient_read_bytes),
      gigabytes(moved.param_write_bytes + moved.record_write_bytes + moved.gradient_write_bytes));
}

// Returns "time (ms) | fwd: 12.30 | bwd: 24.60 | step: 5.10 | ...", with DeepSpeed's names, followed by the
// same time by cause.
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

}  // namespace

StepProgress::StepProgress(const TrainFlags& flags, const TrainConfig& config, const RunSummary& summary,
                           Console& console)
    : flags_(flags),
      config_(config),
      summary_(summary),
      console_(console),
      lines_every_(config.steps_per_print.value_or(divide_up(flags.steps, kLinesPerRun))) {}

void StepProgress::step_done(const StepReport& report) {
  const double weight = std::max(1.0 / static_cast<double>(summary_.steps), kSmoothing);
  mean_seconds_ += weight * (static_cast<double>(report.total_ns) * 1e-9 - mean_seconds_);
  if (report.skipped) {
    console_.info(fmt::format("step {}: skipped, fp16 overflowed with loss scale {}; the next step has {}",
                              report.step, report.loss_scale, report.next_loss_scale));
  }
  const bool due = report.step % lines_every_ == 0 || summary_.steps == 1 || report.step == flags_.steps;
  if (!console_.is_terminal() && !due && clock_.now_ns() - line_ns_ < kLongestSilenceNs) return;
  if (due && config_.wall_clock_breakdown) console_.info(time_line(report));
  show(report);
}

void StepProgress::show(const StepReport& report) {
  line_ns_ = clock_.now_ns();
  const RunProgress progress = {
      .step = report.step,
      .steps = flags_.steps,
      .loss = report.loss,
      .held_out_loss = summary_.validation_loss,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .tokens_per_second = static_cast<double>(report.tokens) / mean_seconds_,
      .seconds_left = mean_seconds_ * static_cast<double>(flags_.steps - report.step)};
  // The last column of the terminal stays empty.
  std::string line = progress_line(progress, console_.columns() == 0 ? 0 : console_.columns() - 1);
  if (flags_.verbose) line += "  " + moved_text(summary_.moved);
  console_.progress(line);
}

void StepProgress::evaluated(uint64_t step, double loss) {
  console_.info(fmt::format("step {}: held-out loss {:.4f}", step, loss));
}

}  // namespace terrace
