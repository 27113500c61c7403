#include "train/train_run.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/runtime/model/weights/export_folder.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>

#include "train/progress_line.h"

namespace terrace {
namespace {

constexpr uint64_t kLinesPerRun = 20;  // where progress is lines and nothing says how many
constexpr double kSmoothing = 0.02;    // least weight of the newest step in what remains: before, a mean
constexpr uint64_t kLongestSilenceNs = 60'000'000'000;  // between two lines where progress is lines

std::filesystem::path weights_folder(const TrainFlags& flags) {
  return std::filesystem::path(flags.save) / "weights";
}

// "h2d 1.20 d2h 0.40 nvme r 3.10 w 2.90 GB", since the run began.
std::string moved_text(const OffloadCounters& moved) {
  const auto gigabytes = [](uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  return fmt::format(
      "h2d {:.2f} d2h {:.2f} nvme r {:.2f} w {:.2f} GB", gigabytes(moved.h2d_bytes),
      gigabytes(moved.d2h_bytes),
      gigabytes(moved.param_read_bytes + moved.record_read_bytes + moved.gradient_read_bytes),
      gigabytes(moved.param_write_bytes + moved.record_write_bytes + moved.gradient_write_bytes));
}

}  // namespace

TrainingRun::TrainingRun(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
                         const CheckpointFolder* saves, Console& console, StepLog& log,
                         StepRecording& recording, RunMonitor& monitor, const StopSignals& signals,
                         JobControl* control, RunSummary& summary)
    : flags_(flags),
      options_(options),
      trainer_(trainer),
      saves_(saves),
      console_(console),
      log_(log),
      recording_(recording),
      monitor_(monitor),
      signals_(signals),
      control_(control),
      summary_(summary),
      lines_every_(options.config.steps_per_print.value_or(divide_up(options.steps, kLinesPerRun))) {}

std::optional<Error> TrainingRun::run() {
  try {
    train();
  } catch (const Error& failure) {
    console_.end_progress();
    summary_.stopped_by = failure.parts().what_failed;
    save_after(failure);
    return ended_by(failure);
  }
  if (!signals_.requested()) return std::nullopt;
  summary_.stopped_by = signals_.name();
  return stopped();
}

void TrainingRun::train() {
  bring_weights_up_to_date();
  while (trainer_.completed_steps() < options_.steps && !signals_.requested()) {
    const StepReport report = trainer_.step();
    summary_.add(report);
    if (summary_.steps == 1) summary_.process_bytes = current_memory_use().pss_bytes;
    log_.step(report);
    recording_.step_done(report.step, trainer_.offloader().commits().in_progress());
    monitor_.picture(recording_.take_picture());
    monitor_.step(report);
    if (control_ != nullptr) control_->step_done(report);
    if (report.skipped) {
      console_.info(fmt::format("step {}: skipped, fp16 overflowed with loss scale {}; the next step has {}",
                                report.step, report.loss_scale, report.next_loss_scale));
    }
    show(report);
    const bool last = report.step == options_.steps;
    if (last) break;
    keep_state();
    if (flags_.eval_every > 0 && report.step % flags_.eval_every == 0) evaluate();
    answer_requests();
  }
  console_.end_progress();
  finish_update();
  // Kept first: an evaluation that fails, or a second signal, must not cost the steps.
  keep_last_state();
  if (!signals_.requested()) evaluate();
  log_.end(trainer_.completed_steps(), signals_.name());
}

void TrainingRun::show(const StepReport& report) {
  const double seconds = static_cast<double>(report.total_ns) * 1e-9;
  const double weight = std::max(1.0 / static_cast<double>(summary_.steps), kSmoothing);
  mean_seconds_ += weight * (seconds - mean_seconds_);
  const uint64_t now = clock_.now_ns();
  const bool due = report.step % lines_every_ == 0 || summary_.steps == 1 || report.step == options_.steps;
  if (!console_.is_terminal() && !due && now - line_ns_ < kLongestSilenceNs) return;
  line_ns_ = now;
  if (due && options_.config.wall_clock_breakdown) console_.info(time_line(report));
  const RunProgress progress = {
      .step = report.step,
      .steps = options_.steps,
      .loss = report.loss,
      .held_out_loss = summary_.validation_loss,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .tokens_per_second = static_cast<double>(report.tokens) / mean_seconds_,
      .seconds_left = mean_seconds_ * static_cast<double>(options_.steps - report.step)};
  // The last column stays empty.
  std::string line = progress_line(progress, console_.columns() == 0 ? 0 : console_.columns() - 1);
  if (flags_.verbose) line += "  " + moved_text(summary_.moved);
  console_.progress(line);
}

// The weights are those of no step until it is complete.
void TrainingRun::finish_update() {
  const FinishedUpdate last = trainer_.finish_update();
  summary_.add(last);
  monitor_.finished(last);
}

void TrainingRun::evaluate() {
  if (trainer_.data().validation_token_count() == 0) return;
  const uint64_t step = trainer_.completed_steps();
  summary_.validation_loss = trainer_.evaluate(flags_.eval_samples);
  summary_.validation_step = step;
  summary_.least.add_evaluation();
  console_.info(fmt::format("step {}: held-out loss {:.4f}", step, *summary_.validation_loss));
  log_.evaluation(step, *summary_.validation_loss);
  monitor_.evaluation(*summary_.validation_loss);
}

// Between two steps: what is due, and what has ended.
void TrainingRun::keep_state() {
  const bool due = flags_.save_every > 0 && trainer_.completed_steps() % flags_.save_every == 0;
  const bool retains =
      options_.config.terrace.retained_checkpoints > 0 && trainer_.offloader().commits().are_kept();
  if (due && retains) note(trainer_.begin_commit(true));
  if (due) save();
  note(trainer_.look_after_state());
}

// With --save as a checkpoint, and on nvme by a commit.
void TrainingRun::keep_last_state() {
  Offloader& offloader = trainer_.offloader();
  const bool is_new = summary_.steps > 0;
  const bool is_epoch = trainer_.durable_step() == trainer_.completed_steps();
  if (is_new || is_epoch) save();
  note(trainer_.finish_save());
  if (!offloader.commits().are_kept()) return;
  if (is_new) note(trainer_.begin_commit());
  note(trainer_.finish_commit());
  const bool complete = trainer_.completed_steps() >= options_.steps && !signals_.requested();
  if (!complete || saved_step_ != trainer_.completed_steps()) return;
  if (const std::string trouble = why_not_saved(*saves_, trainer_.run_id(), *saved_step_); !trouble.empty()) {
    console_.warning(
        fmt::format("the files on nvme stay: the checkpoint of step {} in {} is not what was saved ({})",
                    *saved_step_, flags_.save, trouble));
    return;
  }
  offloader.commits().keep_tier(false);
  summary_.epoch_step.reset();
  console_.info(
      fmt::format("the run is complete and saved in {}: its files on nvme are removed", summary_.checkpoint));
}

// Memory is changed and states are kept here alone, between two steps.
void TrainingRun::answer_requests() {
  trainer_.look_after_memory();
  if (control_ == nullptr) return;
  control_->kept(summary_.epoch_step, saved_step_);
  control_->serve({[&](uint64_t bytes) { return set_host_budget(bytes); }, [&] { return save_as_asked(); }});
}

HostBudgetChange TrainingRun::set_host_budget(uint64_t bytes) {
  HostBudgetChange change = trainer_.set_host_budget(bytes);
  const std::string wish = fmt::format("terrace ctl: host memory {}", format_bytes(bytes));
  if (change.refusal) {
    console_.info(wish + " refused");
  } else {
    console_.info(fmt::format("{}; {} chunks of optimizer states stay in it", wish, change.kept_chunks));
  }
  return change;
}

// What --save-every does, and a commit where the state is on nvme.
SaveAnswer TrainingRun::save_as_asked() {
  SaveAnswer answer;
  answer.checkpoint = !flags_.save.empty();
  answer.epoch = trainer_.offloader().commits().are_kept();
  if (!answer.checkpoint && !answer.epoch) {
    answer.refusal = Error(ErrorKind::config, {"cannot save the state of", "this run",
                                               "it has neither --save nor optimizer states on nvme",
                                               "start it with --save DIR"});
    return answer;
  }
  console_.info(fmt::format("terrace ctl: saving step {}", trainer_.completed_steps()));
  if (answer.checkpoint) {
    save();
  } else {
    note(trainer_.begin_commit());
  }
  return answer;
}

void TrainingRun::note(const KeptState& kept) {
  monitor_.kept(kept);
  if (kept.epoch_step) {
    summary_.epoch_step = kept.epoch_step;
    log_.epoch(*kept.epoch_step);
  }
  if (!kept.checkpoint) return;
  const uint64_t step = kept.checkpoint->step;
  saved_step_ = step;
  summary_.checkpoint = kept.checkpoint->folder.string();
  log_.checkpoint(step, summary_.checkpoint);
  // After a failure the state may have gone wrong some steps ago: then the older ones are what is left.
  if (flags_.keep_last && !failed_)
    remove_older_checkpoints(*saves_, trainer_.run_id(), step, *flags_.keep_last, console_);
}

void TrainingRun::save() {
  const uint64_t step = trainer_.completed_steps();
  if (saves_ == nullptr || saving_step_ == step) return;
  saving_step_ = step;
  // Where commits are kept the checkpoint is copied from one, which waits for the update by itself.
  if (!trainer_.offloader().commits().are_kept()) finish_update();
  note(trainer_.begin_save(*saves_));
  if (options_.config.gather_16bit_weights_on_save) export_weights();
}

// Beside the checkpoints, those of the latest save: what DeepSpeed's save_16bit_model leaves.
void TrainingRun::export_weights() {
  ExportOptions options;
  options.type = options_.config.precision == DataType::fp16 ? DataType::fp16 : DataType::bf16;
  options.replace = true;
  options.source = options_.weights;
  options.step = trainer_.completed_steps();
  trainer_.export_weights(weights_folder(flags_), options);
}

// A job that died between its checkpoint and these weights has left those of an earlier one.
void TrainingRun::bring_weights_up_to_date() {
  const uint64_t step = trainer_.completed_steps();
  if (saves_ == nullptr || !options_.config.gather_16bit_weights_on_save || step == 0) return;
  if (!why_not_saved(*saves_, trainer_.run_id(), step).empty()) return;
  if (step_of_export(weights_folder(flags_)) != step) export_weights();
}

// Where the state in memory is still that of a step. That keeping it failed as well is said in passing.
void TrainingRun::save_after(const Error& failure) {
  failed_ = true;
  const auto in_passing = [&](FunctionRef<void()> action) {
    try {
      action();
    } catch (const Error& second) {
      if (second.parts().what_failed != failure.parts().what_failed) console_.error(second.what());
    }
  };
  in_passing([&] { finish_update(); });
  in_passing([&] { note(trainer_.finish_save()); });
  if (!trainer_.has_whole_state() || summary_.steps == 0) return;
  const uint64_t step = trainer_.completed_steps();
  if (saves_ != nullptr && saved_step_ != step)
    in_passing([&] { note({{}, SavedCheckpoint{step, trainer_.save(*saves_)}}); });
  if (!trainer_.offloader().commits().are_kept()) return;
  in_passing([&] {
    note(trainer_.begin_commit());
    note(trainer_.finish_commit());
  });
}

std::string TrainingRun::what_survives() const {
  std::string kept;
  if (const std::optional<uint64_t> durable = trainer_.durable_step())
    kept = fmt::format("the last commit on nvme is of step {}: go on with --resume nvme", *durable);
  if (saved_step_) {
    kept += fmt::format("{}the last checkpoint is {}: go on with --resume {}", kept.empty() ? "" : "; ",
                        summary_.checkpoint, flags_.save);
  }
  if (!kept.empty()) return kept;
  if (!flags_.resume.empty())
    return fmt::format("this run kept nothing: what it was resumed from is as it was (--resume {})",
                       flags_.resume);
  if (trainer_.offloader().commits().earlier_stays())
    return "this run kept nothing: the commit that was on nvme is still there (--resume nvme)";
  return "nothing was kept: no commit was made and no checkpoint was saved yet";
}

Error TrainingRun::ended_by(const Error& failure) {
  const std::string survives = what_survives();
  try {
    log_.failed(trainer_.completed_steps(), failure.parts().what_failed, survives);
  } catch (const Error& unwritten) {
    console_.error(unwritten.what());
  }
  ErrorParts parts = failure.parts();
  parts.advice += (parts.advice.empty() ? "" : "\n  ") + survives;
  return Error(failure.kind(), std::move(parts));
}

Error TrainingRun::stopped() const {
  std::string advice = "nothing was saved, because --save was not given";
  const bool has_epoch = trainer_.durable_step() == trainer_.completed_steps();
  if (has_epoch) {
    advice = fmt::format("the state is on nvme{}; the same command with --resume auto goes on",
                         summary_.checkpoint.empty() ? "" : " and in " + summary_.checkpoint);
  } else if (!summary_.checkpoint.empty()) {
    advice =
        fmt::format("the state is in {}; the same command with --resume auto goes on", summary_.checkpoint);
  } else if (!flags_.save.empty()) {
    advice = "no step was done in this run, so nothing was saved";
  }
  return Error(
      ErrorKind::cancelled,
      {"training was stopped after", fmt::format("step {} of {}", trainer_.completed_steps(), options_.steps),
       fmt::format("{} was received", signals_.name()), advice});
}

}  // namespace terrace
