// RunSaves: the states that a run of `terrace train` keeps: commits on nvme, checkpoints in the folder of
// --save and 16-bit weights beside them. It decides when they are made, and says how to go on from them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/run_observer.h>

#include "console.h"
#include "flags/train_flags.h"

namespace terrace {

class RunSaves {
 public:
  // The run goes on from where `trainer` stands; `folder` is null without --save, and on every rank but the
  // first. All arguments outlive this object.
  RunSaves(const TrainFlags& flags, const TrainerOptions& options, Trainer& trainer,
           const CheckpointFolder* folder, std::span<RunObserver* const> observers, Console& console);

  // The run has read its state from another place, where it goes once this run has kept it, also where
  // nothing is left to train.
  void take_over() { is_taken_over_ = true; }
  // Brings up to date the weights of a job that died between its checkpoint and its weights.
  void begin();
  // Begins, between two steps, what is due, and notes what has become durable.
  void look_after();
  // Ends the last step's update; until then the weights are those of no step.
  void finish_update();
  // Keeps the state of the last step. If the run is `complete` and saved, its files on nvme are removed.
  void keep_last(bool complete);
  // Saves a checkpoint as --save-every does, and commits if the state is on nvme.
  SaveAnswer save_as_asked();
  // Keeps the state in memory if it is still that of a step. A second failure is only printed.
  void after_failure(const Error& failure);

  // These texts are the advice after a failure and after a signal.
  std::string what_survives() const;
  std::string how_to_go_on() const;
  // The same of several ranks, of which any may have to say it: which state there is should one of them die
  // now.
  std::string what_ranks_go_on_from() const;

 private:
  bool has_trained() const { return trainer_.completed_steps() > first_step_; }
  bool has_new_state() const { return has_trained() || is_taken_over_; }
  bool is_saved(uint64_t step) const;
  void save_now();
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
  bool is_taken_over_ = false;
  bool failed_ = false;
  bool is_asked_ = false;                      // by a request that the other ranks have not heard of
  std::optional<uint64_t> saving_step_;        // the step of the checkpoint that was begun last
  std::optional<SavedCheckpoint> checkpoint_;  // the last complete checkpoint of this run
  std::optional<uint64_t> followed_step_;      // of the last one that the first of several ranks has saved
};

}  // namespace terrace
