// What a Trainer is made of: for its own sources alone (trainer.cpp, trainer_memory.cpp, trainer_state.cpp,
// trainer_update.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/train/checkpoint/found_epoch.h>
#include <terrace/runtime/train/checkpoint/state_keeper.h>
#include <terrace/runtime/train/memory_pressure.h>
#include <terrace/runtime/train/pass_timer.h>
#include <terrace/runtime/train/planning/update_choice.h>
#include <terrace/runtime/train/setup/loss_scaler.h>
#include <terrace/runtime/train/setup/parameter_groups.h>
#include <terrace/runtime/train/trainer.h>

namespace terrace {

// Throws Error(config) unless what was saved in `where` is of this run: of these tensors, data and seed.
void require_same_run(const CheckpointInfo& saved, const std::filesystem::path& where,
                      const CheckpointInfo& mine, const FlatSpace& space);

// The micro-batches of a step that go layer by layer; empty where they go one after the other.
struct LayerMajorTokens {
  LayerMajorTokens(const BatchConfig& batch, size_t tokens_each);
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<std::string> prefixes;
  std::vector<MicroBatchRun> runs;  // views of these
};

struct Trainer::Parts {
  Parts(const TrainerOptions& given, TrainingSetup planned, const TrainingData& user_data, Log& user_log);

  const TrainerOptions options;
  Log& log;
  SteadyClock steady_clock;
  const Clock& clock;
  Workers workers;
  const TrainingSetup setup;
  const Model* const model;
  const TrainingData& data;
  FlatSpace space;
  uint64_t run_id = draw_run_id();
  const std::optional<FoundEpoch> taken_up;  // checked to be of this run
  const std::unique_ptr<Computing> compute;
  const Ops& ops;
  Offloader offloader;
  StackArena arena;
  GroupSettings groups;
  std::optional<LossScaler> scaler;  // in fp16 only
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  LayerMajorTokens layer_major;
  std::vector<uint64_t> use_ns;  // of the last step: what each of its uses computed
  uint64_t completed = 0;
  uint64_t consumed_samples = 0;
  // The weights are those that the two members above count. A step takes that away until it has counted
  // itself.
  bool counts_are_of_weights = true;
  // What keeping the state has moved and taken since the last step; part of the next step's report.
  OffloadCounters kept_moved;
  StateKeeper keeper;
  std::optional<UpdateChoice> update_choice;  // until the mode of the update is decided
  // Null where nothing is to be given back, or must not be.
  std::optional<MemoryPressure> pressure;
  // The host budget when there is no pressure, and the chunks whose states it has room for.
  uint64_t wanted_host_bytes = 0;
  uint32_t wanted_chunks = 0;

  static uint64_t draw_run_id();
  std::optional<FoundEpoch> epoch_to_take_up() const;
  OffloadOptions offload_there() const;
  void set_first_values();
  void take_up_epoch();
  void go_on_from(const CheckpointInfo& saved, const std::string& where);
  MicroBatch batch() const {
    return {tokens, targets, options.config.batch.micro_batch_size, model->config().context};
  }

  uint64_t applied_updates() const { return completed - (scaler ? scaler->skipped_steps() : 0); }
  // With which the next step runs. The scale is a number of fp32, so that dividing by it undoes the
  // multiplication.
  float loss_scale() const { return scaler ? static_cast<float>(scaler->scale()) : 1.0f; }
  void run_micro_batches(StepReport& report);
  void count_step(const StepReport& report, const UpdateResult& update);
  void run_in_turn(StepReport& report, PassTimer& timed, float scale);
  void run_together(StepReport& report, PassTimer& timed, float scale);

  // --- trainer_update.cpp ---
  void begin_update_mode();
  UpdateSettings update_settings();
  bool applies_as_gradients_land() const;
  void announce_update();
  UpdateResult update(StepReport& report);
  void choose_update_mode(const StepReport& report);
  Error not_applied(const StepReport& report) const;
  Error applied_in_part(const StepReport& report) const;

  // --- trainer_memory.cpp ---
  uint64_t budget_for(uint32_t chunks) const;
  HostBudgetChange change_host_budget(uint64_t bytes);

  // Of this run: what an earlier one must have had in common.
  CheckpointInfo identity() const;
  EpochInfo info() const;
  // Does something for the state between two steps, and counts it.
  template <typename Action>
  KeptState keep(Action action);
  void finish_update_between_steps();
};

}  // namespace terrace
