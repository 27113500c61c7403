// TrainingSetup: a training run before anything is allocated: the model, the uses of one step, and their fit
// into memory. The trainer and the programs that only ask about a run both begin here.
#pragma once

#include <memory>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/setup/run_plan.h>

namespace terrace {

// Returns the model's options in this configuration.
ModelOptions model_options(const TrainConfig& config);

struct TrainingSetup {
  const ComputeDevice* compute = nullptr;  // where it runs; null: the simulated device
  std::unique_ptr<Model> model;
  std::vector<TensorSpec> tensors;  // the model's, with their parameter groups
  DryRun dry;
  OffloadOptions offload;
  TrainerPlan plan;
};

// Computes the gradient of tied embeddings late (ModelOptions::late_head_gradient) if they do not fit the
// device otherwise, and always when micro-batches go layer by layer. Throws Error: config for settings that
// do not fit together, capacity for budgets that are too small. `compute` is where the run computes and
// outlives it; null: the simulated device.
TrainingSetup set_up_training(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                              const ComputeDevice* compute = nullptr);

// Runs a step of the configuration's batch and an evaluation dry: nothing is computed and no data is read.
DryRun run_dry(const Model& model, const TrainConfig& config, Workers& workers,
               const ComputeDevice* compute = nullptr);

// True if Offloader::announce_update() may be called before the last micro-batch. In fp16, where the step may
// still be skipped, it may only if clipping or a loss scale keeps gradients from being applied as they land;
// states are then read ahead.
bool may_announce_update(const TrainConfig& config, const UpdateSettings& settings);

// Returns a micro-batch of the configuration's size without tokens.
MicroBatch dry_micro_batch(const TrainConfig& config, const ModelConfig& model);

// Return the key prefix of a micro-batch's uses, and those of all micro-batches of a step.
std::string micro_batch_prefix(uint32_t micro_batch);
std::vector<std::string> micro_batch_prefixes(const BatchConfig& batch);

}  // namespace terrace
