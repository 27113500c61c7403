#include "train_run.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/machine.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {
namespace {

constexpr uint64_t kLinesPerRun = 20;  // where progress is lines and nothing says how many
constexpr double kSmoothing = 0.2;     // weight of the newest step in the estimate of what remains

std::string gigabytes(uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) * 1e-9);
}

std::string remaining_text(double seconds) {
  const auto whole = static_cast<uint64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{} min {:02} s", whole / 60, whole % 60) : fmt::format("{} s", whole);
}

}  // namespace

TrainingRun::TrainingRun(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
                         Console& console, StepLog& log, RunMonitor& monitor, const StopSignals& signals,
                         RunSummary& summary)
    : flags_(flags),
      options_(options),
      trainer_(trainer),
      console_(console),
      log_(log),
      monitor_(monitor),
      signals_(signals),
      summary_(summary),
      lines_every_(options.config.steps_per_print.value_or(divide_up(options.steps, kLinesPerRun))) {}

std::optional<Error> TrainingRun::run() {
  try {
    train();
  } catch (const Error& failure) {
    console_.end_progress();
    // A step whose loss or gradient is not finite changes nothing; any other failure inside a step may have.
    if (failure.kind() == ErrorKind::cancelled) state_is_whole_ = true;
    summary_.stopped_by = failure.parts().what_failed;
    return save_after(failure);
  }
  if (!signals_.requested()) return std::nullopt;
  summary_.stopped_by = signals_.name();
  return stopped();
}

void TrainingRun::train() {
  while (trainer_.completed_steps() < options_.steps && !signals_.requested()) {
    state_is_whole_ = false;
    const StepReport report = trainer_.step();
    state_is_whole_ = true;
    summary_.add(report);
    if (summary_.steps == 1) summary_.process_bytes = current_memory_use().pss_bytes;
    log_.step(report);
    monitor_.step(report);
    if (report.skipped) {
      console_.info(fmt::format("step {}: skipped, fp16 overflowed with loss scale {}; the next step has {}",
                                report.step, report.loss_scale, report.next_loss_scale));
    }
    show(report);
    const bool last = report.step == options_.steps;
    if (!last && flags_.eval_every > 0 && report.step % flags_.eval_every == 0) evaluate();
    if (!last && flags_.save_every > 0 && report.step % flags_.save_every == 0) save();
  }
  console_.end_progress();
  // Saved first: an evaluation that fails, or a second signal, must not cost the steps.
  if (summary_.steps > 0) save();
  if (!signals_.requested()) evaluate();
  log_.end(trainer_.completed_steps(), signals_.name());
}

void TrainingRun::show(const StepReport& report) {
  const double seconds = static_cast<double>(report.total_ns) * 1e-9;
  recent_seconds_ =
      recent_seconds_ == 0 ? seconds : (1 - kSmoothing) * recent_seconds_ + kSmoothing * seconds;
  const bool due = report.step % lines_every_ == 0 || summary_.steps == 1 || report.step == options_.steps;
  if (!console_.is_terminal() && !due) return;
  if (due && options_.config.wall_clock_breakdown) console_.info(time_line(report));
  const OffloadCounters& moved = summary_.moved;
  console_.progress(fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tokens/s  {:.2f} s/step  GB h2d {} d2h {} nvme r {} w {}  ETA {}",
      report.step, options_.steps, report.loss, static_cast<double>(report.tokens) / seconds, seconds,
      gigabytes(moved.h2d_bytes), gigabytes(moved.d2h_bytes),
      gigabytes(moved.param_read_bytes + moved.record_read_bytes),
      gigabytes(moved.param_write_bytes + moved.record_write_bytes),
      remaining_text(recent_seconds_ * static_cast<double>(options_.steps - report.step))));
}

void TrainingRun::evaluate() {
  if (trainer_.data().validation_token_count() == 0) return;
  const uint64_t step = trainer_.completed_steps();
  state_is_whole_ = false;
  summary_.validation_loss = trainer_.evaluate(flags_.eval_samples);
  state_is_whole_ = true;
  console_.info(fmt::format("step {}: held-out loss {:.4f}", step, *summary_.validation_loss));
  log_.evaluation(step, *summary_.validation_loss);
  monitor_.evaluation(*summary_.validation_loss);
}

void TrainingRun::save() {
  const uint64_t step = trainer_.completed_steps();
  if (flags_.save.empty() || saved_step_ == step) return;
  const std::string folder = trainer_.save(flags_.save).string();
  saved_step_ = step;
  summary_.checkpoint = folder;
  log_.checkpoint(step, folder);
  if (options_.config.gather_16bit_weights_on_save) export_weights();
  // After a failure the state may have gone wrong some steps ago: then the older ones are what is left.
  if (flags_.keep_last && !failed_) remove_older_checkpoints(flags_.save, step, *flags_.keep_last, console_);
}

// Beside the checkpoints, those of the latest save: what DeepSpeed's save_16bit_model leaves.
void TrainingRun::export_weights() {
  ExportOptions options;
  options.type = options_.config.precision == DataType::fp16 ? DataType::fp16 : DataType::bf16;
  options.replace = true;
  options.source = options_.weights;
  trainer_.export_weights(std::filesystem::path(flags_.save) / "weights", options);
}

// The failure itself, or, where saving failed as well, that failure said in passing.
std::optional<Error> TrainingRun::save_after(const Error& failure) {
  failed_ = true;
  if (!state_is_whole_ || flags_.save.empty() || summary_.steps == 0) {
    if (!summary_.checkpoint.empty()) console_.info("the last checkpoint is " + summary_.checkpoint);
    return failure;
  }
  try {
    save();
  } catch (const Error& second) {
    if (second.parts().what_failed != failure.parts().what_failed) console_.error(second.what());
  }
  return failure;
}

Error TrainingRun::stopped() const {
  std::string advice = "nothing was saved, because --save was not given";
  if (!summary_.checkpoint.empty()) {
    advice = fmt::format("the state is in {}; the same flags with --resume {} continue from there",
                         summary_.checkpoint, flags_.save);
  } else if (!flags_.save.empty()) {
    advice = "no step was done in this run, so nothing was saved";
  }
  return Error(
      ErrorKind::cancelled,
      {"training was stopped after", fmt::format("step {} of {}", trainer_.completed_steps(), options_.steps),
       fmt::format("{} was received", signals_.name()), advice});
}

}  // namespace terrace
