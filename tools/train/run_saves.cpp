#include "train/run_saves.h"

#include <fmt/format.h>

#include <utility>

#include <terrace/reference/model/weights/export_folder.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {
namespace {

std::filesystem::path weights_folder(const TrainFlags& flags) {
  return std::filesystem::path(flags.save) / "weights";
}

}  // namespace

RunSaves::RunSaves(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
                   const CheckpointFolder* folder, std::span<RunObserver* const> observers, Console& console)
    : flags_(flags),
      options_(options),
      trainer_(trainer),
      folder_(folder),
      observers_(observers),
      console_(console),
      first_step_(trainer.completed_steps()) {}

void RunSaves::begin() {
  const uint64_t step = trainer_.completed_steps();
  if (flags_.save.empty() || !options_.config.gather_16bit_weights_on_save || step == 0) return;
  const bool lack = folder_ != nullptr && why_not_saved(*folder_, trainer_.run_id(), step).empty() &&
                    step_of_export(weights_folder(flags_)) != step;
  if (trainer_.first_rank(lack)) export_weights();
}

void RunSaves::look_after() {
  // Only the first rank is asked, and all of them save.
  if (options_.config.batch.ranks > 1 && trainer_.first_rank(std::exchange(is_asked_, false))) save_now();
  const bool due = flags_.save_every > 0 && trainer_.completed_steps() % flags_.save_every == 0;
  const bool retains =
      options_.config.terrace.retained_checkpoints > 0 && trainer_.offloader().commits().are_kept();
  if (due && retains) note(trainer_.begin_commit(true));
  if (due) save();
  note(trainer_.look_after_state());
}

void RunSaves::finish_update() {
  const FinishedUpdate last = trainer_.finish_update();
  for (RunObserver* observer : observers_) observer->update_finished(last);
}

void RunSaves::keep_last(bool complete) {
  Offloader& offloader = trainer_.offloader();
  const uint64_t step = trainer_.completed_steps();
  if (has_new_state() || trainer_.durable_step() == step) save();
  note(trainer_.finish_save());
  if (!offloader.commits().are_kept()) return;
  if (has_new_state()) note(trainer_.begin_commit());
  note(trainer_.finish_commit());
  // The first rank has written the checkpoint, and knows for all of them.
  if (!trainer_.first_rank(complete && is_saved(step))) return;
  offloader.commits().keep_tier(false);
  for (RunObserver* observer : observers_) observer->commits_removed();
  if (checkpoint_)
    console_.info(fmt::format("the run is complete and saved in {}: its files on nvme are removed",
                              checkpoint_->folder.string()));
}

// Whether the last checkpoint is that of the step, and what was saved.
bool RunSaves::is_saved(uint64_t step) const {
  if (!checkpoint_ || checkpoint_->step != step) return false;
  const std::string trouble = why_not_saved(*folder_, trainer_.run_id(), step);
  if (!trouble.empty())
    console_.warning(
        fmt::format("the files on nvme stay: the checkpoint of step {} in {} is not what was saved ({})",
                    step, flags_.save, trouble));
  return trouble.empty();
}

SaveAnswer RunSaves::save_as_asked() {
  SaveAnswer answer;
  answer.checkpoint = !flags_.save.empty();
  answer.commit = trainer_.offloader().commits().are_kept();
  if (!answer.checkpoint && !answer.commit) {
    answer.refusal = Error(ErrorKind::config, {"cannot save the state of", "this run",
                                               "it has neither --save nor optimizer states on nvme",
                                               "start it with --save DIR"});
    return answer;
  }
  console_.info(fmt::format("terrace ctl: saving step {}", trainer_.completed_steps()));
  if (options_.config.batch.ranks > 1) {
    is_asked_ = true;  // until all ranks hear of it, after the next step
  } else {
    save_now();
  }
  return answer;
}

void RunSaves::save_now() {
  if (!flags_.save.empty()) {
    save();
  } else {
    note(trainer_.begin_commit());
  }
}

void RunSaves::save() {
  const uint64_t step = trainer_.completed_steps();
  if (flags_.save.empty() || saving_step_ == step) return;
  saving_step_ = step;
  // A checkpoint that is copied from a commit: that commit waits for the update by itself.
  if (!trainer_.copies_commits()) finish_update();
  note(folder_ != nullptr ? trainer_.begin_save(*folder_) : trainer_.follow_begin_save());
  if (folder_ == nullptr && !trainer_.copies_commits()) followed_step_ = step;
  if (options_.config.gather_16bit_weights_on_save) export_weights();
}

void RunSaves::note(const KeptState& kept) {
  if (!kept.commit_step && !kept.checkpoint) return;
  if (kept.checkpoint) checkpoint_ = kept.checkpoint;
  for (RunObserver* observer : observers_) observer->state_kept(kept);
  // After a failure the state may have been wrong for some steps, so older checkpoints are kept.
  if (kept.checkpoint && flags_.keep_last && !failed_)
    remove_older_checkpoints(*folder_, trainer_.run_id(), checkpoint_->step, *flags_.keep_last, console_);
}

// The weights lie beside the checkpoints and are those of the latest save, as DeepSpeed's save_16bit_model
// leaves them.
void RunSaves::export_weights() {
  if (folder_ == nullptr) return trainer_.follow_save();
  ExportOptions options;
  options.type = options_.config.precision == DataType::fp16 ? DataType::fp16 : DataType::bf16;
  options.replace = true;
  options.source = options_.weights;
  options.step = trainer_.completed_steps();
  trainer_.export_weights(weights_folder(flags_), options);
}

void RunSaves::after_failure(const Error& failure) {
  failed_ = true;
  // Of several ranks, others may be elsewhere by now, unless all failed alike.
  if (options_.config.batch.ranks > 1 && failure.kind() != ErrorKind::cancelled) return;
  const auto in_passing = [&](FunctionRef<void()> action) {
    try {
      action();
    } catch (const Error& second) {
      const bool is_the_same =
          second.parts().what_failed.in(Door::program) == failure.parts().what_failed.in(Door::program);
      if (!is_the_same) console_.error(second.in(Door::program));
    }
  };
  in_passing([&] { finish_update(); });
  in_passing([&] { note(trainer_.finish_save()); });
  // A commit that is in progress becomes durable all the same, and is what survives then.
  if (!trainer_.has_whole_state() || !has_trained())
    return in_passing([&] { trainer_.offloader().commits().end(); });
  const uint64_t step = trainer_.completed_steps();
  // The others do not know whether the first rank's last checkpoint is complete.
  const bool has_saved =
      options_.config.batch.ranks > 1 ? saving_step_ == step : checkpoint_ && checkpoint_->step == step;
  if (folder_ == nullptr && !flags_.save.empty() && !has_saved) in_passing([&] { trainer_.follow_save(); });
  if (folder_ != nullptr && !has_saved)
    in_passing([&] { note({{}, SavedCheckpoint{step, trainer_.save(*folder_)}}); });
  if (!trainer_.offloader().commits().are_kept()) return;
  in_passing([&] {
    note(trainer_.begin_commit());
    note(trainer_.finish_commit());
  });
}

std::string RunSaves::what_survives() const {
  std::string kept;
  if (const std::optional<uint64_t> durable = trainer_.durable_step())
    kept = fmt::format("the last commit on nvme is of step {}: go on with --resume nvme", *durable);
  if (checkpoint_) {
    kept += fmt::format("{}the last checkpoint is {}: go on with --resume {}", kept.empty() ? "" : "; ",
                        checkpoint_->folder.string(), flags_.save);
  }
  if (!kept.empty()) return kept;
  if (!flags_.resume.empty())
    return fmt::format("this run kept nothing: the state it was resumed from is unchanged (--resume {})",
                       flags_.resume);
  if (trainer_.offloader().commits().earlier_stays())
    return "this run kept nothing: the commit that was on nvme is still there (--resume nvme)";
  return "nothing was kept: no commit was made and no checkpoint was saved yet";
}

std::string RunSaves::what_ranks_go_on_from() const {
  std::optional<uint64_t> step = checkpoint_ ? std::optional(checkpoint_->step) : followed_step_;
  if (const std::optional<uint64_t> durable = trainer_.durable_step(); durable && durable > step)
    step = durable;
  if (step)
    return fmt::format(
        "the state is that of step {}: `--resume auto` goes on from there with any number of ranks", *step);
  if (flags_.save.empty()) return "nothing was saved, because --save was not given";
  return fmt::format(
      "`--resume auto` goes on from the newest checkpoint in {}, if there is one, with any number of ranks",
      flags_.save);
}

std::string RunSaves::how_to_go_on() const {
  const std::string folder = checkpoint_ ? checkpoint_->folder.string() : "";
  if (trainer_.durable_step() == trainer_.completed_steps()) {
    return fmt::format("the state is on nvme{}; the same command with --resume auto goes on",
                       checkpoint_ ? " and in " + folder : "");
  }
  if (checkpoint_)
    return fmt::format("the state is in {}; the same command with --resume auto goes on", folder);
  if (!flags_.save.empty()) return "no step was done in this run, so nothing was saved";
  return "nothing was saved, because --save was not given";
}

}  // namespace terrace
