// RunSaves: the states that a run of `terrace train` keeps: commits on nvme, checkpoints in the folder of
// --save and 16-bit weights beside them; when they are made, and what they leave to go on from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"
#include "flags/train_flags.h"

namespace terrace {

class RunSaves {
 public:
  // `trainer` stands where the run goes on; `folder` is null without --save. Everything outlives this.
  RunSaves(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
           const CheckpointFolder* folder, std::span<RunObserver* const> observers, Console& console);

  // Brings up to date the weights of a job that died between its checkpoint and its weights.
  void begin();
  // Between two steps: begins what is due, and notes what has become durable.
  void look_after();
  // Ends the last step's update: the weights are those of no step until then.
  void finish_update();
  // Keeps the state of the last step, and removes the files on nvme of a run that is `complete` and saved.
  void keep_last(bool complete);
  // Does what --save-every does, and commits where the state is on nvme.
  SaveAnswer save_as_asked();
  // Keeps the state in memory where it is still that of a step. A second failure is only printed.
  void after_failure(const Error& failure);

  // Advice after a failure, and after a signal.
  std::string what_survives() const;
  std::string how_to_go_on() const;

 private:
  bool has_trained() const { return trainer_.completed_steps() > first_step_; }
  void save();
  void note(const KeptState& kept);
  void export_weights();

  const TrainFlags& flags_;
  const TrainerOptions& options_;
  Trainer& trainer_;
  const CheckpointFolder* const folder_;
  const std::span<RunObserver* const> observers_;
  Console& console_;
  const uint64_t first_step_;  // the completed steps when the run began
  bool failed_ = false;
  std::optional<uint64_t> saving_step_;        // of the checkpoint that was begun last
  std::optional<SavedCheckpoint> checkpoint_;  // the last complete one of this run
};

}  // namespace terrace
