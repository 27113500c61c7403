#include "train/step_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include <terrace/aio/thread_identity.h>
#include <terrace/base/duration_text.h>
#include <terrace/base/units.h>

#include "train/progress_line.h"

namespace terrace {
namespace {

constexpr uint64_t kLinesPerRun = 20;  // if progress is shown as lines and no interval is configured
constexpr double kSmoothing = 0.02;    // the newest step's least weight in the time that remains
constexpr uint64_t kLongStepNs = 2'000'000'000;         // from then on it is said where a step is
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
std::string time_line(const StepReport& report, bool has_others) {
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const OffloadCounters& moved = report.moved;
  std::string parts;
  for (const TimeCause cause : kTimeCauses) {
    if (cause == TimeCause::ranks && !has_others) continue;
    parts += fmt::format("{}{} {:.2f}", parts.empty() ? "" : ", ", name_of(cause), ms(moved.time[cause]));
  }
  return fmt::format("step {}: time (ms) | fwd: {:.2f} | bwd: {:.2f} | step: {:.2f} | {}", report.step,
                     ms(report.forward_ns), ms(report.forward_backward_ns - report.forward_ns),
                     ms(report.update_ns), parts);
}

}  // namespace

StepProgress::StepProgress(const TrainFlags& flags, const TrainConfig& config, const RunRecord& run,
                           const StepSources& sources, Console& console)
    : flags_(flags),
      config_(config),
      run_(run),
      console_(console),
      lines_every_(config.steps_per_print.value_or(divide_up(flags.steps, kLinesPerRun))),
      sources_(sources),
      thread_([this] { watch_steps(); }) {}

StepProgress::~StepProgress() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  end_asked_.notify_one();
  thread_.join();
}

void StepProgress::step_begins(uint64_t step) {
  const MutexLock lock(mutex_);
  step_ = step;
  begun_ns_ = clock_.now_ns();
  line_ns_ = std::max(line_ns_, begun_ns_);
  silence_ns_ = kLongestSilenceNs;
}

void StepProgress::step_done(const StepReport& report) {
  const MutexLock lock(mutex_);
  step_ = 0;
  loss_ = report.loss;
  const double weight = std::max(1.0 / static_cast<double>(run_.all().count), kSmoothing);
  mean_seconds_ += weight * (static_cast<double>(report.total_ns) * 1e-9 - mean_seconds_);
  if (report.skipped) {
    console_.info(fmt::format("step {}: skipped, fp16 overflowed with loss scale {}; the next step has {}",
                              report.step, report.loss_scale, report.next_loss_scale));
  }
  warn_of_explosion(report);
  const bool due = report.step % lines_every_ == 0 || run_.all().count == 1 || report.step == flags_.steps;
  if (!console_.is_terminal() && !due && clock_.now_ns() - shown_ns_ < kLongestSilenceNs) return;
  if (due && config_.wall_clock_breakdown) console_.info(time_line(report, config_.batch.ranks > 1));
  show(report);
}

// Once. A model that knows nothing has the untrained loss, and a model from a file at most a little more, on
// text that is strange to it.
void StepProgress::warn_of_explosion(const StepReport& report) {
  constexpr double kTimes = 3;
  if (warned_of_explosion_ || !(report.loss > kTimes * sources_.untrained_loss)) return;
  warned_of_explosion_ = true;
  console_.warning(fmt::format(
      "step {}: the loss is {}, and a model that knows nothing has {:.2f}: training has come apart; "
      "lower the learning rate (it is {:.3g}), or set gradient_clipping, and go on from an earlier "
      "state",
      report.step, loss_text(report.loss), sources_.untrained_loss, report.learning_rate));
}

void StepProgress::show(const StepReport& report) {
  shown_ns_ = line_ns_ = clock_.now_ns();
  const RunProgress progress = {
      .step = report.step,
      .steps = flags_.steps,
      .loss = report.loss,
      .held_out_loss = run_.last_evaluation() ? std::optional(run_.last_evaluation()->loss) : std::nullopt,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .tokens_per_second = static_cast<double>(report.tokens) / mean_seconds_,
      .seconds_left = seconds_left(report.step)};
  // The last column of the terminal stays empty.
  std::string line = progress_line(progress, console_.columns() == 0 ? 0 : console_.columns() - 1);
  if (flags_.verbose) line += "  " + moved_text(run_.all().moved);
  console_.progress(line);
}

double StepProgress::seconds_left(uint64_t step) const {
  return mean_seconds_ * static_cast<double>(flags_.steps - step);
}

void StepProgress::watch_steps() {
  io::become_background_thread("terrace-where");
  const MutexLock lock(mutex_);
  while (!ends_) {
    end_asked_.wait_for(mutex_, std::chrono::milliseconds(500));
    if (!ends_ && step_ > 0) look();
  }
}

void StepProgress::look() {
  const uint64_t now = clock_.now_ns();
  if (now - begun_ns_ < kLongStepNs) return;
  const std::string place = place_in_step(sources_.watch.activity(), sources_.shape);
  say_where_it_stops(place);
  std::string line = fmt::format("step {}/{}: {}", step_, flags_.steps, place);
  if (mean_seconds_ > 0)
    line += fmt::format(", loss {}, ETA {}", loss_text(loss_), format_seconds(seconds_left(step_ - 1)));
  console_.meanwhile(line);
  if (console_.is_terminal() || now - line_ns_ < silence_ns_) return;
  line_ns_ = now;
  silence_ns_ *= 2;
  console_.progress(line);
}

// Once, after the wish to stop: how long the step may still take.
void StepProgress::say_where_it_stops(const std::string& place) {
  if (said_where_it_stops_ || !sources_.signals.requested()) return;
  said_where_it_stops_ = true;
  console_.info(fmt::format("step {} has been running for {} and is at {}; {}", step_,
                            format_duration(clock_.now_ns() - begun_ns_), place,
                            mean_seconds_ > 0 ? "a step takes " + format_seconds(mean_seconds_)
                                              : "it is the first, so how long it takes is not known"));
}

void StepProgress::evaluated(uint64_t step, double loss) {
  console_.info(fmt::format("step {}: held-out loss {}", step, loss_text(loss)));
}

}  // namespace terrace
