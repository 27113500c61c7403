// Trainer: a model of any size, tokens, a configuration and budgets in; steps, losses and checkpoints out.
// It decides nothing about memory: it runs the model dry, hands the trace to the planner, and feeds the
// Offloader.
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
#include <terrace/offload/offloader.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/transformer/model.h>
#include <terrace/runtime/model/weights/export_weights.h>
#include <terrace/runtime/train/checkpoint/state_keeper.h>
#include <terrace/runtime/train/data/training_data.h>
#include <terrace/runtime/train/setup/training_setup.h>
#include <terrace/runtime/train/trainer_reports.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

struct TrainerOptions {
  TrainConfig config;
  ModelConfig model;
  // A folder of weights to begin with (weight_folder.h); empty: the model's own first values. Not needed by a
  // run that resumes.
  std::filesystem::path weights = {};
  uint64_t steps = 100;  // of the whole run: schedules that need a length use it
  // resume: the run goes on from the commit that its nvme paths hold, which must be of this run; chunks are
  // those of the commit then. fresh: a commit there is an Error(config), unless it is to be discarded.
  TierStart tier_start = TierStart::fresh;
  bool discard_epochs = false;
  const Clock* clock = nullptr;             // null: the steady one; outlives the trainer
  const ComputeDevice* compute = nullptr;   // null: the simulated device; outlives the trainer
  std::filesystem::path system_root = "/";  // in which proc/ and sys/ lie
};

class Trainer {
 public:
  // Plans, allocates and initialises. Throws Error: config for what does not fit together, capacity for
  // budgets that are too small, io for paths that cannot be used. `data` has the context of the model and the
  // seed of the configuration; it and `log` outlive the trainer.
  Trainer(const TrainerOptions& options, const TrainingData& data, Log& log);
  // The same without planning again: `setup` is plan_training(options).
  Trainer(const TrainerOptions& options, TrainingSetup setup, const TrainingData& data, Log& log);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const TrainerPlan& plan() const;
  const TrainingData& data() const;
  Offloader& offloader();
  const FlatSpace& space() const;

  // One optimizer step: all its micro-batches, then the update, which may end in the next step only
  // (UpdateMode). Throws Error when bytes cannot be moved and when the loss or the gradient is not finite;
  // the state is then that of the step before, unless the update had begun: such an Error is of kind corrupt,
  // and nothing can be saved after it. In fp16 what is not finite is skipped instead, until the loss scale
  // cannot be lowered any more.
  StepReport step();
  uint64_t completed_steps() const;
  // The state in memory is that of completed_steps() and can be kept. False while an update is pending, and
  // for good after a failure in a step or in its update; a failure of anything else leaves it as it is.
  bool has_whole_state() const;
  // Of these, the steps that changed the weights: all of them but those skipped in fp16.
  uint64_t applied_updates() const;
  // The position in the data: how many samples the steps so far were made of.
  uint64_t consumed_samples() const;

  // When updates run: as the configuration says, or as the first steps have shown to be the fastest.
  UpdateMode update_mode() const;
  // Waits until the last step's update is complete; evaluations, checkpoints and exports do so themselves.
  FinishedUpdate finish_update();

  // --- The host budget, between two steps; it changes no number ---
  // As HostBudget::set(), of which the next step's report has the bytes and the time. More than
  // the run began with has no effect. Throws what moving records failed with.
  HostBudgetChange set_host_budget(uint64_t bytes);
  // Where terrace.memory_pressure asks for it: looks at the memory cgroup and changes the host budget as
  // runtime/train/memory_pressure.h has it, saying so in one line. True when it has. Throws the same.
  bool look_after_memory();

  // The mean loss over `samples` windows spread over the validation part.
  double evaluate(uint64_t samples);

  // --- Keeping the state, between two steps (runtime/train/checkpoint/state_keeper.h) ---
  // Call it after every step: commits where offloader().commits().are_kept() and the configuration says
  // that it is time, and sees what has ended. Throws what a commit or a checkpoint failed with; the state is
  // whole then.
  KeptState look_after_state();
  // Begins a commit of the state; with `retain` it outlives those after it.
  KeptState begin_commit(bool retain = false);
  KeptState finish_commit();
  std::optional<uint64_t> durable_step() const;  // whose commit is durable
  // Saves in `folder`, which outlives the save: with commits while training goes on, else before it returns.
  KeptState begin_save(const CheckpointFolder& folder);
  KeptState finish_save();
  // Saves what is in memory, without any commit; returns the folder of this step.
  std::filesystem::path save(const CheckpointFolder& folder);
  // Of the training from its first step on, whatever it was resumed from since: checkpoints have it.
  uint64_t run_id() const;
  // Writes the weights, between two steps, as a folder that transformers loads. Errors as of
  // runtime/model/weights/export_weights.h.
  ExportReport export_weights(const std::filesystem::path& folder, const ExportOptions& options);
  // Takes up a saved state, whatever placement and budgets it was saved with. Throws Error(config) when it is
  // of another model or was trained on other data, and Error(corrupt) when it is damaged; the trainer is then
  // not to be used but to resume from another checkpoint. Settings that differ from those of the checkpoint's
  // run are said to the log.
  void resume(const std::filesystem::path& folder);

  // Throws what resume() of a trainer that is made of these would throw. Reads every byte of the checkpoint
  // and changes nothing: for what must be known before the state that is there goes.
  static void require_resumable(const std::filesystem::path& folder, const TrainerOptions& options,
                                const TrainingSetup& setup, const TrainingData& data);

  // "gpt2 7 layers x 512, 8 heads, context 256, vocabulary 256, bf16".
  std::string model_description() const;
  const std::vector<TierUse> device_ledger() const;
  // What a step uses, with the time that each use computed in the last one; of updates the time is estimated
  // (runtime/train/planning/training_schedule.h).
  SimSchedule recorded_schedule() const;
  // The most device memory that was ever taken.
  uint64_t device_peak_bytes() const;

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

// What a Trainer of these options would plan, checked as a whole: runs the model dry, looks at the weights
// that are named, and allocates nothing but bookkeeping.
TrainingSetup plan_training(const TrainerOptions& options);

}  // namespace terrace
