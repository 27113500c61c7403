// Trainer takes a model of any size, tokens, a configuration and budgets, and gives steps, losses and
// checkpoints. It decides nothing about memory: it runs the model dry, hands the trace to the planner, and
// feeds the Offloader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/log.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/data/training_data.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/model/weights/export_weights.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/checkpoint/state_keeper.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/run_reports.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

class PlanningProgress;

struct TrainerOptions {
  TrainConfig config;
  ModelConfig model;
  // A folder of weights to begin with (weight_folder.h); empty: the model's own first values. A run that
  // resumes does not need it.
  std::filesystem::path weights = {};
  uint64_t steps = 100;  // steps of the whole run, for schedules that need a length
  // resume: the run goes on from the commit on its nvme paths, which must be this run's; chunks are then
  // those of the commit. fresh: a commit there is an Error(config) unless discard_commits is set.
  TierStart tier_start = TierStart::fresh;
  bool discard_commits = false;
  uint64_t commit = 0;  // of several ranks: the one to resume, which all of them have; 0: the newest
  // Where config.batch.ranks is above 1: this rank among them. Every rank makes a Trainer of the same options
  // and the same calls; budgets are the least that any of them has. Outlives the trainer.
  Communicator* communicator = nullptr;
  const Clock* clock = nullptr;             // null: the steady one; outlives the trainer
  const ComputeDevice* compute = nullptr;   // null: the simulated device; outlives the trainer
  std::filesystem::path system_root = "/";  // where proc/ and sys/ lie
};

class Trainer {
 public:
  // Plans, allocates and initialises. Throws Error: config for settings that do not fit together, capacity
  // for budgets that are too small, io for paths that cannot be used. `data` has the context of the model and
  // the seed of the configuration; it and `log` outlive the trainer.
  Trainer(const TrainerOptions& options, const TrainingData& data, Log& log);
  // Does not plan again: `setup` is plan_training(options).
  Trainer(const TrainerOptions& options, TrainingSetup setup, const TrainingData& data, Log& log);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const TrainerPlan& plan() const;
  const TrainingData& data() const;
  Offloader& offloader();
  const FlatSpace& space() const;

  // Runs one optimizer step: all its micro-batches, then the update, which may end only in the next step
  // (UpdateMode). Throws Error when bytes cannot be moved and when the loss or the gradient is not finite.
  // The state is then that of the step before, unless the update had begun: such an Error is of kind corrupt,
  // and nothing can be saved after it. fp16 skips a step that is not finite instead, until the loss scale
  // cannot be lowered any more.
  StepReport step();
  uint64_t completed_steps() const;
  // True if the state in memory is that of completed_steps() and can be kept. It is false while an update is
  // pending, and for good after a failure in a step or in its update; no other failure changes it.
  bool has_whole_state() const;
  // Returns the completed steps that changed the weights: all but those skipped in fp16.
  uint64_t applied_updates() const;
  // Returns the position in the data: the number of samples in all steps so far.
  uint64_t consumed_samples() const;

  // Returns the mode of updates: the configured one, or the fastest in the first steps.
  UpdateMode update_mode() const;
  // Waits until the last step's update is complete; evaluations, checkpoints and exports do so themselves.
  FinishedUpdate finish_update();

  // --- The host budget, between two steps; it changes no number ---
  // Does what HostBudget::set() does; the next step's report has the bytes and the time. A budget above the
  // initial one has no effect. Throws the failure of moving records.
  HostBudgetChange set_host_budget(uint64_t bytes);
  // If terrace.memory_pressure is set, looks at the memory cgroup and changes the host budget by the rule of
  // runtime/budget/memory_pressure.h, with one line in the log. Returns true if it changed. Throws as
  // set_host_budget() does.
  bool look_after_memory();

  // True on every rank if `mine` is true on any of them; every rank calls it.
  bool any_rank(bool mine) const;
  bool first_rank(bool mine) const;  // what the first rank says; the same for all

  // Returns the mean loss over `samples` windows spread over the validation part.
  double evaluate(uint64_t samples);

  // --- Keeping the state, between two steps (runtime/checkpoint/state_keeper.h) ---
  // Call it after every step: it commits when offloader().commits().are_kept() and a commit is due by the
  // configuration, and notices saves that have ended. Throws the failure of a commit or a checkpoint; the
  // state is whole then.
  KeptState look_after_state();
  // Begins a commit of the state; with `retain` later commits do not remove it.
  KeptState begin_commit(bool retain = false);
  KeptState finish_commit();
  std::optional<uint64_t> durable_step() const;  // the step whose commit is durable
  // Saves in `folder`, which outlives the save. Where copies_commits() it saves while training goes on, else
  // before it returns. Of several ranks the first saves what all of them have, and the others call
  // follow_begin_save(); with save() and export_weights() they call follow_save().
  KeptState begin_save(const CheckpointFolder& folder);
  KeptState follow_begin_save();
  void follow_save();
  bool copies_commits() const;  // the same on all ranks
  KeptState finish_save();
  // Saves the state in memory without any commit; returns the folder of this step.
  std::filesystem::path save(const CheckpointFolder& folder);
  // Identifies the training from its first step on, through every resume; checkpoints have it.
  uint64_t run_id() const;
  // Writes the weights, between two steps, as a folder that transformers loads. Throws as the functions of
  // reference/model/weights/export_weights.h do.
  ExportReport export_weights(const std::filesystem::path& folder, const ExportOptions& options);
  // Restores a saved state, whatever placement and budgets it was saved with. Throws Error(config) when it is
  // of another model or was trained on other data, and Error(corrupt) when it is damaged; the trainer can
  // then only resume from another checkpoint. The log names settings that differ from those of the
  // checkpoint's run.
  void resume(const std::filesystem::path& folder);
  // The same of a state that another number of ranks has committed; every rank calls it. Nothing of the set
  // changes.
  void resume(const StateSet& set);

  // Throws as resume() of a trainer of these options would. Reads every byte of the checkpoint and changes
  // nothing; call it before discarding the current state.
  static void require_resumable(const std::filesystem::path& folder, const TrainerOptions& options,
                                const TrainingSetup& setup, const TrainingData& data);

  // Returns "gpt2 7 layers x 512, 8 heads, context 256, vocabulary 256, bf16".
  std::string model_description() const;
  // Returns the uses of a step with their compute times in the last step; the times of updates are estimated
  // (reference/planning/training_schedule.h).
  SimSchedule recorded_schedule() const;
  // The device of the offloader.
  const Device& device() const;

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

// Returns the checked plan of a Trainer of these options: runs the model dry, looks at the named weights, and
// allocates nothing but bookkeeping. `progress` is told how far the plan has come; null: nobody is.
TrainingSetup plan_training(const TrainerOptions& options, PlanningProgress* progress = nullptr);

}  // namespace terrace
