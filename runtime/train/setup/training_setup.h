// TrainingSetup: what a training run is before anything is allocated: the model, what one step of it uses,
// and how that fits the memory it gets. The trainer and the programs that only want to know both begin here.
#pragma once

#include <memory>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/model/transformer/model.h>
#include <terrace/runtime/train/setup/run_plan.h>

namespace terrace {

// How the configuration has a model trained.
ModelOptions model_options(const TrainConfig& config);

struct TrainingSetup {
  const ComputeDevice* compute = nullptr;  // where it runs, as below
  std::unique_ptr<Model> model;
  std::vector<TensorSpec> tensors;  // the model's, with their parameter groups
  DryRun dry;
  OffloadOptions offload;
  TrainerPlan plan;
};

// Where tied embeddings do not fit the device otherwise, their gradient is computed late
// (ModelOptions::late_head_gradient), and always where micro-batches go layer by layer. Throws Error: config
// for what does not fit together, capacity for budgets that are too small. `compute` is where it is to run,
// and outlives what it is given to; null: on the simulated device.
TrainingSetup set_up_training(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                              const ComputeDevice* compute = nullptr);

// A step of the configuration's batch and an evaluation, run dry: nothing is computed and no data is read.
DryRun run_dry(const Model& model, const TrainConfig& config, Workers& workers,
               const ComputeDevice* compute = nullptr);

// Whether Offloader::announce_update() may be told before the last micro-batch how the step will end. Where
// gradients cannot be applied as they land, states are read ahead; a loss scale of 1 in fp16 is no promise
// that they can.
bool may_announce_update(const TrainConfig& config, const UpdateSettings& settings);

// A micro-batch of the configuration's size without tokens.
MicroBatch dry_micro_batch(const TrainConfig& config, const ModelConfig& model);

// The key of a micro-batch's uses; and of all of a step.
std::string micro_batch_prefix(uint32_t micro_batch);
std::vector<std::string> micro_batch_prefixes(const BatchConfig& batch);

}  // namespace terrace
