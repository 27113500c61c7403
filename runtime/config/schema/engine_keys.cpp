#include <terrace/runtime/config/schema/engine_keys.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include <terrace/base/text/json_writer.h>

namespace terrace {
namespace {

using Effect = EngineEffect;

// clang-format off
constexpr auto kEngineKeys = std::to_array<EngineKey>({
    {"steps_per_print", Effect::idle},
    {"wall_clock_breakdown", Effect::as_program, "Monitors show the milliseconds of forward, backward and update."},
    {"communication_data_type", Effect::idle},
    {"gradient_clipping", Effect::as_program, "Without it nothing is clipped, as with torch; DeepSpeed clips at 1.0.", "0"},
    {"dump_state", Effect::as_program, "engine.config has every value."},
    {"disable_python_gc", Effect::as_program, "Python's garbage collector is yours to set (gc.disable())."},
    {"data_types.buffer_dtype", Effect::honoured, "The type that buffers of floating point get; without it each keeps its own.", "", "fp16|bf16|fp32"},
    {"data_types.keep_in_fp32_modules", Effect::as_program, "Buffers keep their types. For parameters convert the model yourself, and leave bf16.enabled and fp16.enabled out: then each parameter keeps its own. \"auto\" is accepted."},
    {"zero_optimization.offload_optimizer.ratio", Effect::refused, "leave it at 1.0: updates run on the processor"},
    {"zero_optimization.stage3_prefetch_bucket_size", Effect::idle},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", Effect::idle},
    {"zero_optimization.overlap_comm", Effect::idle},
    {"zero_optimization.zero_hpz_partition_size", Effect::idle},
    {"zero_optimization.mics_shard_size", Effect::idle},
    {"zero_optimization.zero_quantized_weights", Effect::refused, "leave it out: parameters stay exact"},
    {"zero_optimization.zero_quantized_gradients", Effect::refused, "leave it out: gradients stay exact"},
    {"aio.use_gds", Effect::refused, "leave it out"},
    {"aio", Effect::idle},
    {"activation_checkpointing.cpu_checkpointing", Effect::as_program, "The inputs of what torch.utils.checkpoint computes again wait in host memory, inside terrace.host_memory, as with terrace.offload_activations cpu."},
    {"activation_checkpointing", Effect::idle},
    {"wandb.enabled", Effect::honoured, "Needs the package (pip install wandb), and a login (wandb login) unless WANDB_MODE is offline. Without the package: refused."},
    {"wandb.group", Effect::honoured, "The group of the run."},
    {"wandb.team", Effect::honoured, "The team or user whose run it is, which wandb calls entity."},
    {"wandb.project", Effect::honoured, "The project of the run."},
    {"wandb", Effect::honoured, "The scalars of tensorboard go to Weights & Biases, from the first rank."},
    {"comet.enabled", Effect::honoured, "Needs the package (pip install comet_ml), and an API key unless online is false. Without the package: refused."},
    {"comet.samples_log_interval", Effect::honoured, "A scalar is sent again after so many sequences."},
    {"comet.project", Effect::honoured, "The project. What is not given here or below comes from comet's own configuration."},
    {"comet.workspace", Effect::honoured, "The workspace of the project."},
    {"comet.api_key", Effect::honoured, "The API key. Terrace writes it to no log; COMET_API_KEY and comet login keep it out of the file too."},
    {"comet.experiment_name", Effect::honoured, "The name of the experiment."},
    {"comet.experiment_key", Effect::honoured, "The key of the experiment that goes on, or of the new one."},
    {"comet.online", Effect::honoured, "false: an offline experiment, which comet upload sends later."},
    {"comet.mode", Effect::honoured, "get: the experiment of experiment_key goes on. create: a new one. get_or_create: whichever is possible."},
    {"comet", Effect::honoured, "The scalars of tensorboard go to Comet, from the first rank."},
    {"comms_logger", Effect::idle},
    {"terrace.device", Effect::as_program, "Where the model computes unless the call names a device: on the processor, with host memory (simulated, and auto), or on the first GPU (cuda)."},
    {"terrace.update", Effect::as_program, "As in the program, but auto is after_backward."},
    {"terrace.compute", Effect::refused, "leave it out: the model computes"},
    {"terrace.gpu_products", Effect::idle},
    {"terrace.policy", Effect::idle},
    {"terrace.prefetch_depth", Effect::idle},
    {"terrace.memory_pressure", Effect::idle},
    {"terrace.ranks", Effect::idle},
    {"terrace.gradient_group", Effect::refused, "leave it out: micro-batches are added one after the other"},
    {"terrace.quantized_gradient_bits", Effect::idle},
    {"terrace.rank_exchange", Effect::as_program, "As in the program, but auto is pulled where the other keys allow it (docs/python_ranks.md): not with communicator nccl."},
    {"terrace.stall_warning_seconds", Effect::as_program, "As in the program, of several ranks, and of one whose run is followed (docs/python.md)."},
    {"terrace.stall_abort_seconds", Effect::as_program, "With several ranks: where one of them keeps the others waiting for so many seconds, all of them get a PeerError that names it (docs/python_ranks.md). 0: they wait for ever."},
    {"terrace.compare_ranks_every_steps", Effect::idle},
    {"terrace.bind_threads", Effect::idle},
    {"terrace.seed", Effect::idle},
    {"terrace.offload_activations", Effect::as_program, "Where the inputs of what torch.utils.checkpoint computes again wait for backward: with torch (none), in what terrace.host_memory leaves (cpu), or where that is full on nvme (nvme, in the folders of offload_optimizer.nvme_path or offload_param.nvme_path, which may be there for this alone). auto: cpu, with nvme if there is such a folder. The numbers are the same, bit for bit (docs/python_memory.md)."},
    {"terrace.checkpoint_activations", Effect::idle},
    {"terrace.frozen", Effect::refused, "set requires_grad or Tensor.trainable in the model"},
    {"terrace.lora", Effect::refused, "add adapters to the model, as peft does"},
    {"terrace.quantize_base", Effect::refused, "call terrace.torch.quantize_base before terrace.initialize"},
    {"terrace.parameter_groups", Effect::refused, "give parameter groups to the optimizer"},
});
// clang-format on

SchemaKey engine_row(SchemaKey row, const EngineKey& key) {
  row.note = key.note;
  if (!key.default_text.empty()) row.default_text = key.default_text;
  if (key.effect != Effect::honoured) return row;
  row.effect = KeyEffect::honoured;
  if (key.allowed.empty()) return row;
  row.type = ValueType::choice;
  row.limits = {.allowed = key.allowed};
  return row;
}

}  // namespace

const EngineKey* engine_key(std::string_view path) {
  const auto found = std::find_if(kEngineKeys.begin(), kEngineKeys.end(), [&](const EngineKey& key) {
    return path.starts_with(key.path) && (path.size() == key.path.size() || path[key.path.size()] == '.');
  });
  return found == kEngineKeys.end() ? nullptr : &*found;
}

const SchemaKey& row_for(ConfigUser user, const SchemaKey& row) {
  static const auto rows = [] {
    std::unordered_map<const SchemaKey*, SchemaKey> changed;
    for (const EngineKey& key : kEngineKeys) {
      if (key.effect == Effect::refused || key.effect == Effect::idle) continue;
      const SchemaKey& of_program = *find_path(key.path);
      changed.emplace(&of_program, engine_row(of_program, key));
    }
    return changed;
  }();
  const auto found = user == ConfigUser::engine ? rows.find(&row) : rows.end();
  return found == rows.end() ? row : found->second;
}

std::string engine_keys_json() {
  JsonWriter json;
  json.begin_list(JsonLayout::lines);
  for (const SchemaKey& of_program : schema()) {
    const SchemaKey& row = row_for(ConfigUser::engine, of_program);
    json.object({{"key", row.path()},
                 {"value", accepted_values(row)},
                 {"default", row.default_text},
                 {"effect", name_of(row.effect)},
                 {"note", row.note}});
  }
  return json.end().take();
}

}  // namespace terrace
