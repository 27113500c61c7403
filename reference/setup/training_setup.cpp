#include <terrace/reference/setup/training_setup.h>

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <unordered_map>

#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/config/parameter_groups.h>

namespace terrace {
namespace {

// A stage has only some of the weights that patterns of groups name.
void take_groups_of_whole(const TrainConfig& config, const ModelConfig& part, const ModelOptions& options,
                          std::span<TensorSpec> tensors) {
  std::vector<TensorSpec> whole = make_model(whole_of(part), options)->tensors();
  resolve_parameter_groups(config, whole);
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  for (const TensorSpec& tensor : whole) by_name[tensor.name] = &tensor;
  for (TensorSpec& tensor : tensors) {
    const TensorSpec& known = *by_name.at(tensor.name);
    tensor.group = known.group, tensor.by_matrix = known.by_matrix;
  }
}

TrainingSetup set_up(const TrainConfig& config, const ModelConfig& model, const ModelOptions& options,
                     Workers& workers, const ComputeDevice* compute) {
  TrainingSetup setup;
  setup.compute = compute;
  setup.model = make_model(model, options);
  setup.tensors = setup.model->tensors();
  if (model.part) {
    take_groups_of_whole(config, model, options, setup.tensors);
  } else {
    resolve_parameter_groups(config, setup.tensors);
  }
  setup.dry = run_dry(*setup.model, config, workers, compute);
  setup.offload = offload_options(config, setup.dry);
  setup.plan = make_plan(config, setup.tensors, setup.dry, setup.offload);
  setup.plan.parameter_count = setup.model->parameter_count();
  return setup;
}

}  // namespace

DryRun run_dry(const Model& model, const TrainConfig& config, Workers& workers,
               const ComputeDevice* compute) {
  const std::unique_ptr<const Ops> dry_ops = make_dry_ops(compute, workers);
  const Ops& ops = *dry_ops;
  const MicroBatch batch = dry_micro_batch(config, model.config());
  const uint32_t accumulation = config.batch.rounds().count();
  StackArena arena = StackArena::dry_run();
  UseRecorder recorder;
  ActivationRecorder activations;
  ActivationStore* const store =
      config.activations.offload == ActivationOffload::none ? nullptr : &activations;
  const std::vector<std::string> prefixes = micro_batch_prefixes(config.batch);
  std::vector<MicroBatchRun> runs;
  for (uint32_t m = 0; m < accumulation; ++m) runs.push_back({batch, prefixes[m]});
  if (model.config().part) {
    model.train_stage(
        ops, recorder, arena, runs, [](StageMoment, uint32_t) {}, store);
  } else if (config.batch.layer_major) {
    model.train_layer_major(ops, recorder, arena, runs, 1.0f, store);
  } else {
    for (uint32_t m = 0; m < accumulation; ++m) {
      recorder.select_micro_batch(m);
      model.train_micro_batch(ops, recorder, arena, batch, 1.0f, prefixes[m], store);
    }
  }
  UseRecorder evaluation;
  if (!model.config().part) model.evaluate(ops, evaluation, arena, batch, "");
  return {recorder.take_trace(),
          round_up(arena.peak_bytes(), 4096),
          activations.entry_count(),
          activations.entry_bytes(),
          {activations.get_order().begin(), activations.get_order().end()},
          facts_of(compute)};
}

bool may_announce_update(const TrainConfig& config, const UpdateSettings& settings) {
  const bool never_skips = config.precision != DataType::fp16;
  return never_skips || settings.clip_norm > 0 || settings.loss_scale != 1;
}

MicroBatch dry_micro_batch(const TrainConfig& config, const ModelConfig& model) {
  const uint64_t tokens = uint64_t{config.batch.micro_batch_size} * model.context;
  return {{static_cast<int32_t*>(nullptr), tokens},
          {static_cast<int32_t*>(nullptr), tokens},
          config.batch.micro_batch_size,
          model.context};
}

std::vector<std::string> micro_batch_prefixes(const BatchConfig& batch) {
  std::vector<std::string> prefixes;
  for (uint32_t m = 0; m < batch.rounds().count(); ++m) prefixes.push_back(micro_batch_prefix(m));
  return prefixes;
}

std::string micro_batch_prefix(uint32_t micro_batch) {
  return fmt::format("mb{}/", micro_batch);
}

ModelOptions model_options(const TrainConfig& config) {
  ModelOptions options;
  options.type = config.precision;
  options.seed = config.terrace.seed;
  options.checkpoint_activations = config.activations.checkpoint;
  options.checkpoint_count = config.activations.checkpoint_count;
  options.frozen = config.frozen;
  options.late_head_gradient = config.batch.layer_major;
  if (config.lora) options.lora = {config.lora->rank, config.lora->alpha, config.lora->targets};
  options.quantize_base = config.quantize_base;
  return options;
}

TrainingSetup set_up_training(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                              const ComputeDevice* compute) {
  ModelOptions options = model_options(config);
  std::optional<ShortageError> early;
  try {
    return set_up(config, model, options, workers, compute);
  } catch (const ShortageError& shortage) {
    if (!model.tied_embeddings || options.late_head_gradient) throw;
    early = shortage;
  }
  options.late_head_gradient = true;
  try {
    return set_up(config, model, options, workers, compute);
  } catch (const ShortageError& late) {
    throw ShortageError(lesser(*early, late));
  }
}

}  // namespace terrace
