#include "train/train_run.h"

#include <fmt/format.h>

#include <terrace/base/units.h>

namespace terrace {

void TrainingRun::run() {
  try {
    train();
  } catch (const Error& failure) {
    parts_.console.end_progress();
    parts_.saves.after_failure(failure);
    tell_what_is_kept();
    const std::optional<Error> death = parts_.others.death_behind(failure);
    rank_died_ = death.has_value();
    failure_ = death ? *death : own_failure(failure);
  }
  parts_.trainer.offloader().wait_for_copies();  // a recorded copy is counted when it ends
}

// Where other ranks have ended because this one's commit failed, this one may have met their end before its
// own failure.
Error TrainingRun::own_failure(const Error& failure) {
  if (failure.kind() != ErrorKind::peer) return failure;
  try {
    parts_.trainer.offloader().commits().end();
  } catch (const Error& own) {
    if (own.kind() != ErrorKind::peer) return own;
  }
  return failure;
}

void TrainingRun::train() {
  Trainer& trainer = parts_.trainer;
  const TrainFlags& flags = parts_.flags;
  parts_.saves.begin();
  tell_what_is_kept();
  while (trainer.completed_steps() < flags.steps && !is_to_stop()) {
    for (RunObserver* observer : parts_.observers) observer->step_begins(trainer.completed_steps() + 1);
    const StepReport report = trainer.step();
    for (RunObserver* observer : parts_.observers) observer->step_done(report);
    if (report.step == flags.steps) break;
    parts_.saves.look_after();
    if (flags.eval_every > 0 && report.step % flags.eval_every == 0) evaluate();
    answer_requests();
    tell_what_is_kept();
  }
  parts_.console.end_progress();
  parts_.saves.finish_update();
  // The state is kept first: an evaluation that fails, or a second signal, must not cost the steps.
  parts_.saves.keep_last(trainer.completed_steps() >= flags.steps && !is_to_stop());
  if (!is_to_stop()) evaluate();
}

// Should a rank die, each of the others may have to say it, at any moment.
void TrainingRun::tell_what_is_kept() {
  parts_.others.set_what_is_kept(parts_.saves.what_ranks_go_on_from());
}

void TrainingRun::evaluate() {
  Trainer& trainer = parts_.trainer;
  if (trainer.data().validation_token_count() == 0) return;
  const double loss = trainer.evaluate(parts_.flags.eval_samples);
  for (RunObserver* observer : parts_.observers) observer->evaluated(trainer.completed_steps(), loss);
}

// Memory changes and states are kept only here, between two steps.
void TrainingRun::answer_requests() {
  parts_.trainer.look_after_memory();
  if (parts_.control == nullptr) return;
  parts_.control->serve(
      {[&](uint64_t bytes) { return set_host_budget(bytes); }, [&] { return parts_.saves.save_as_asked(); }});
}

HostBudgetChange TrainingRun::set_host_budget(uint64_t bytes) {
  HostBudgetChange change = parts_.trainer.set_host_budget(bytes);
  const std::string wish = fmt::format("terrace ctl: host memory {}", format_bytes(bytes));
  if (change.refusal) {
    parts_.console.info(wish + " refused");
  } else {
    parts_.console.info(
        fmt::format("{}; {} chunks of optimizer states stay in it", wish, change.kept_chunks));
  }
  return change;
}

std::optional<Error> TrainingRun::end() {
  RunEnd end;
  end.step = parts_.trainer.completed_steps();
  std::optional<Error> told;
  const auto fail_with = [&](const Error& failure) {
    end.failed = true;
    end.stopped_by = failure.parts().what_failed.in(Door::program);
    end.survives = parts_.saves.what_survives();
    ErrorParts parts = failure.parts();
    if (!rank_died_) parts.advice += (parts.advice.empty() ? "" : "\n  ") + end.survives;  // else it is there
    told = Error(failure.kind(), std::move(parts));
  };
  if (failure_) {
    fail_with(*failure_);
  } else if (stops_) {
    end.stopped_by = parts_.signals.requested() ? parts_.signals.name() : "another rank";
    told = stopped();
  }
  for (RunObserver* observer : parts_.observers) {
    end.told = told ? told->in(Door::program) : "";
    try {
      observer->ended(end);
    } catch (const Error& unwritten) {
      if (end.failed) {
        parts_.console.error(unwritten.in(Door::program));
      } else {
        fail_with(unwritten);
      }
    }
  }
  return told;
}

Error TrainingRun::stopped() const {
  return Error(ErrorKind::cancelled,
               {"training was stopped after",
                fmt::format("step {} of {}", parts_.trainer.completed_steps(), parts_.flags.steps),
                parts_.signals.requested() ? fmt::format("{} was received", parts_.signals.name())
                                           : "another rank was asked to stop",
                parts_.saves.how_to_go_on()});
}

}  // namespace terrace
