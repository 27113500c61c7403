// TrainingRun: the loop of `terrace train`: steps, evaluations, checkpoints, progress and the log, until the
// last step or until somebody wants it to stop. It plans nothing and allocates nothing of size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/run_monitor.h"
#include "train/step_log.h"
#include "train/step_recording.h"
#include "train/stop_signals.h"
#include "train/train_summary.h"

namespace terrace {

class TrainingRun {
 public:
  // All references outlive the run, and so does `control`, null where nobody can reach it.
  TrainingRun(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
              const CheckpointFolder* saves, Console& console, StepLog& log, StepRecording& recording,
              RunMonitor& monitor, const StopSignals& signals, JobControl* control, RunSummary& summary);

  // Trains to the end, or to the end of the step in which a signal arrived, and saves when that was asked
  // for. What goes wrong is returned, after the state was saved when it is still whole; its last line says
  // what survives, and how to go on from there.
  std::optional<Error> run();

 private:
  void train();
  void show(const StepReport& report);
  void finish_update();
  void evaluate();
  void keep_state();
  void keep_last_state();
  void answer_requests();
  HostBudgetChange set_host_budget(uint64_t bytes);
  SaveAnswer save_as_asked();
  void save();
  void note(const KeptState& kept);
  void export_weights();
  void bring_weights_up_to_date();
  void save_after(const Error& failure);
  std::string what_survives() const;
  Error ended_by(const Error& failure);
  Error stopped() const;

  const TrainFlags& flags_;
  const TrainerOptions& options_;
  Trainer& trainer_;
  const CheckpointFolder* const saves_;
  Console& console_;
  StepLog& log_;
  StepRecording& recording_;
  RunMonitor& monitor_;
  const StopSignals& signals_;
  JobControl* const control_;
  RunSummary& summary_;
  uint64_t lines_every_;
  bool failed_ = false;
  std::optional<uint64_t> saving_step_;  // a checkpoint of it was begun
  std::optional<uint64_t> saved_step_;   // and is complete
  SteadyClock clock_;
  uint64_t line_ns_ = 0;     // of the last line of progress
  double mean_seconds_ = 0;  // of a step
};

}  // namespace terrace
