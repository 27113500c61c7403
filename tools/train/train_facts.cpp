#include "train/train_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/reference/model/transformer/adapter.h>
#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/config/compute_threads.h>

#include "command_line.h"
#include "flags/compute_choice.h"
#include "text_table.h"
#include "train/machine_facts.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string kept_on_nvme(const std::vector<fs::path>& paths, uint64_t chunks, uint64_t kept,
                         const char* what) {
  return fmt::format("nvme ({}); {} of {} chunks of {} resident in host memory", text_of_paths(paths), kept,
                     chunks, what);
}

std::string parameters_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  const std::string size = fmt::format("{}: ", format_bytes(plan.param_bytes));
  if (plan.memory.device_share_bytes > 0)
    return size + fmt::format("device memory, of which each rank has its share ({})",
                              format_bytes(plan.memory.device_share_bytes));
  if (placement.parameters == Placement::none) return size + "device memory";
  if (placement.parameters == Placement::cpu) return size + "host memory (cpu)";
  return size + kept_on_nvme(placement.parameter_paths, plan.memory.parameter_chunks,
                             plan.memory.host_param_slots, "parameters");
}

std::string states_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  const std::string size = fmt::format("{}: ", format_bytes(plan.state_bytes));
  if (placement.states == Placement::none) return size + "device memory";
  if (placement.states == Placement::cpu) return size + "host memory (cpu)";
  return size + kept_on_nvme(placement.state_paths, plan.memory.record_chunks, plan.memory.host_record_slots,
                             "states");
}

std::string device_text(const TrainerPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  std::string text =
      fmt::format("activations and workspaces {}, {} chunk slots of {} = {} (at least {})",
                  format_bytes(memory.work_bytes), memory.device_slots, format_bytes(memory.slot_bytes),
                  format_bytes(memory.device_slots * memory.slot_bytes), memory.device_slots_minimum);
  if (memory.device_activation_entries > 0)
    text += fmt::format(", activation checkpoints {}", format_bytes(memory.device_activation_bytes()));
  if (memory.device_share_bytes > 0)
    text += fmt::format(", shares of parameters {}", format_bytes(memory.device_share_bytes));
  if (memory.device_record_slots > 0)
    text += fmt::format(", states {}", format_bytes(memory.device_record_slots * memory.record_slot_bytes));
  if (memory.device_lanes > 0)
    text += fmt::format(", buffers of updates {}", format_bytes(memory.device_lanes_bytes()));
  return text;
}

std::string host_text(const TrainerPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  std::string text;
  const auto add = [&text](const char* what, uint64_t bytes) {
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, format_bytes(bytes));
  };
  add("parameters", memory.host_param_slots * memory.slot_bytes);
  add("gradients", memory.host_gradient_slots * memory.slot_bytes +
                       memory.host_accumulator_slots * memory.accumulator_slot_bytes +
                       memory.gradient_sum_bytes);
  add("states", memory.host_record_slots * memory.record_slot_bytes);
  add("activation checkpoints", memory.host_activation_bytes());
  add("staging", (memory.staging_slots + memory.old_parameter_slots) * memory.slot_bytes +
                     memory.landing_slots * memory.landing_slot_bytes +
                     2 * memory.spill_slots * memory.spill_slot_bytes);
  add("I/O ring", memory.ring_slots * memory.ring_slot_bytes);
  add("copies of commits", memory.commit_slots * memory.commit_slot_bytes);
  add("steps of matrices", memory.matrix_bytes);
  add("bookkeeping of chunks", memory.bookkeeping_bytes);
  return text;
}

// Adds how far the run exceeds its memory: each budget as a share of the parameters or states, if it is not
// larger than they are.
void add_shares(std::vector<ReportFact>& facts, const PlacementConfig& placement, const TrainerPlan& plan) {
  const auto share = [](const char* what, uint64_t bytes, const char* whole, uint64_t of) {
    return fmt::format(
        "{} {:.1f} MB = {:.0f} % of the {} ({:.1f} MB)", what, static_cast<double>(bytes) * 1e-6,
        100 * static_cast<double>(bytes) / static_cast<double>(of), whole, static_cast<double>(of) * 1e-6);
  };
  const char* name = "in short";
  if (placement.parameters != Placement::none && plan.device.bytes <= plan.param_bytes) {
    facts.push_back({name, share("device budget", plan.device.bytes, "parameters", plan.param_bytes), true});
    name = "";
    facts.push_back({name,
                     share("of it parameter and gradient slots",
                           plan.memory.device_slots * plan.memory.slot_bytes, "parameters", plan.param_bytes),
                     true});
  }
  if (placement.states == Placement::nvme && plan.host.bytes <= plan.state_bytes)
    facts.push_back({name, share("host budget", plan.host.bytes, "states", plan.state_bytes), true});
}

const char* moment_names(uint32_t count) {
  return count == 0 ? "no moments" : count == 1 ? "one moment" : "two moments";
}

std::string states_form_text(const TrainerPlan& plan) {
  const RecordLayout& layout = plan.memory.record_layout;
  const bool compact = layout.master == MasterForm::remainder;
  std::string text = fmt::format(
      "{} bytes of states per parameter: {}, {}", layout.tile_bytes() / kTileElements,
      compact ? "what the bf16 parameter lacks of its fp32 master weight" : "the fp32 master weight",
      moment_names(layout.moment_count));
  if (layout.moment_count > 0) text += fmt::format(" in {}", name_of(layout.moment_type));
  return text;
}

std::string update_text(const TrainConfig& config) {
  if (config.terrace.update) return fmt::format("{}, as configured", name_of(*config.terrace.update));
  if (config.placement.states == Placement::none)
    return "after_backward, because the states are in device memory";
  return "after_backward at first, then what the first steps show to be the fastest";
}

// Describes the sides of an update of states below the device; empty if no ratio is configured and the
// processor updates everything.
std::string side_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  if (plan.memory.device_update_chunks() == 0 && placement.processor_share == 1) return "";
  if (plan.memory.device_update_chunks() == 0)
    return fmt::format(
        "the processor does all of it: chunks are whole, and a ratio of {} leaves the device none of them",
        placement.processor_share);
  if (plan.processor_share == 0) return "the device does all of it";
  return fmt::format("the processor does {:.3g} of it, and the device the rest at the same time",
                     plan.processor_share);
}

std::string order_text(const TrainConfig& config) {
  return config.batch.layer_major ? "all micro-batches layer by layer: parameters move once per step"
                                  : "one micro-batch after the other";
}

std::string precision_text(const TrainConfig& config, const ComputeDevice* device) {
  std::string text =
      fmt::format("{} parameters and gradients, fp32 master weights", name_of(config.precision));
  if (config.batch.micro_batches > 1 && config.grad_accum_type.value_or(DataType::fp32) != DataType::fp32)
    text += fmt::format(", gradients added up in {}", name_of(*config.grad_accum_type));
  if (config.parameter_bits > 0)
    text += fmt::format(", parameters rounded to {} bits", config.parameter_bits);
  if (config.batch.gradient_bits > 0)
    text += fmt::format(", gradients rounded to {} bits", config.batch.gradient_bits);
  if (products_of(config, device) != name_of(DataType::fp32)) text += ", " + products_text(config, device);
  if (config.precision != DataType::fp16) return text;
  return text + (config.fp16.loss_scale > 0
                     ? fmt::format(", loss scale {}", config.fp16.loss_scale)
                     : fmt::format(", loss scale from 2^{}", config.fp16.initial_scale_power));
}

// Returns a value in force and its origin: "0.001 (default)".
std::string with_origin(const TrainConfig& config, std::string_view key) {
  const auto found = std::find_if(config.resolved.begin(), config.resolved.end(),
                                  [&](const ResolvedValue& value) { return value.key == key; });
  return found == config.resolved.end() ? "none" : fmt::format("{} ({})", found->value, found->origin);
}

std::string optimizer_text(const TrainConfig& config) {
  const OptimizerRow& row = row_of(config.optimizer.type);
  const std::string rates = row.kind == OptimizerKind::muon
                                ? fmt::format("{} of matrices and {} of what AdamW updates beside them",
                                              with_origin(config, "optimizer.params.muon_lr"),
                                              with_origin(config, "optimizer.params.adam_lr"))
                                : with_origin(config, "optimizer.params.lr");
  return fmt::format("{}, rate {}, weight decay {}, clipping {}", row.key, rates,
                     with_origin(config, "optimizer.params.weight_decay"),
                     with_origin(config, "gradient_clipping"));
}

std::string schedule_text(const TrainConfig& config, uint64_t steps) {
  const LrScheduleOptions& schedule = config.schedule;
  if (schedule.kind == LrScheduleKind::constant) return "the rate stays as it is";
  std::string text = with_origin(config, "scheduler.type");
  const bool warms_up = schedule.kind == LrScheduleKind::warmup ||
                        schedule.kind == LrScheduleKind::warmup_decay ||
                        schedule.kind == LrScheduleKind::warmup_cosine;
  if (warms_up) text += fmt::format(", {} steps of warm-up", grouped(schedule.warmup_step_count));
  const bool decays = schedule.kind == LrScheduleKind::linear ||
                      schedule.kind == LrScheduleKind::warmup_decay ||
                      schedule.kind == LrScheduleKind::warmup_cosine;
  if (decays) text += fmt::format(", down until step {}", grouped(schedule.total_step_count.value_or(steps)));
  return text;
}

std::string model_text(const TrainFlags& flags, const TrainerOptions& options, const TrainerPlan& plan) {
  const ModelConfig& model = options.model;
  const std::string heads = model.key_value_heads == 0 || model.key_value_heads == model.heads
                                ? counted(model.heads, "head")
                                : fmt::format("{} heads on {}", model.heads, model.key_value_heads);
  return fmt::format("{}: {}, {} of width {}, {}, context {}, vocabulary {}: {} parameters", flags.model,
                     name_of(model.family), counted(model.layers, "layer"), model.width, heads, model.context,
                     model.vocabulary, grouped(plan.parameter_count));
}

std::string weights_text(const TrainerOptions& options, const RunStart& start) {
  if (start.commit || start.set) return "those of the state on nvme that is gone on from";
  if (!start.checkpoints.empty())
    return fmt::format("those of the checkpoint that is gone on from, {}",
                       start.checkpoints.front().string());
  if (!options.weights.empty()) return fmt::format("of {}", options.weights.string());
  return fmt::format("random, of seed {}", options.config.terrace.seed);
}

// Returns an empty text if all weights are trained.
std::string trained_text(const TrainerOptions& options, const TrainerPlan& plan) {
  const TrainConfig& config = options.config;
  std::string text;
  if (config.lora) {
    const std::vector<std::string> targets =
        config.lora->targets.empty() ? default_adapter_targets(options.model.family) : config.lora->targets;
    text = fmt::format("LoRA of rank {} and alpha {} beside {}", config.lora->rank, config.lora->alpha,
                       joined(targets, ", "));
    if (config.quantize_base != WeightCode::none)
      text += fmt::format(", over a base in {}", name_of(config.quantize_base));
  } else if (!config.frozen.empty()) {
    text = fmt::format("all but {}", joined(config.frozen, ", "));
  } else {
    return "";
  }
  return fmt::format("{}: {} parameters", text, grouped(plan.trainable_count));
}

std::string ranks_text(const Communicator& ranks) {
  uint32_t hosts = 0;
  for (const RankPlace& place : ranks.places()) hosts = std::max(hosts, place.host + 1);
  return fmt::format("{} on {}", ranks.size(), counted(hosts, "host"));
}

std::string batch_text(const TrainerOptions& options, const TrainingData& data) {
  const BatchConfig& batch = options.config.batch;
  const uint64_t samples = batch.train_batch_size();
  std::string text = fmt::format("{} of {} tokens = {} tokens a step", counted(samples, "sequence"),
                                 grouped(options.model.context), grouped(samples * options.model.context));
  if (batch.micro_batches > 1)
    text += fmt::format(
        " ({} micro-batches of {}{})", batch.micro_batches, batch.micro_batch_size,
        batch.rounds().has_groups() ? fmt::format(", in groups of {}", batch.rounds().group) : "");
  const double passes = static_cast<double>(options.steps) * static_cast<double>(samples) /
                        static_cast<double>(data.sample_count());
  return text + fmt::format("; {} = {:.{}f} passes over the data", counted(options.steps, "step"), passes,
                            passes < 10 ? 2 : 0);
}

void add_details(std::vector<ReportFact>& facts, const TrainerOptions& options, const TrainerPlan& plan,
                 const TrainingData& data) {
  const TrainConfig& config = options.config;
  const auto add = [&facts](const char* name, std::string text) {
    facts.push_back({name, std::move(text), true});
  };
  add("command", given_command_line());
  add("samples", fmt::format("{}, each once per pass", grouped(data.sample_count())));
  add("states", states_form_text(plan));
  add("update", update_text(config));
  if (config.placement.states != Placement::none) {
    const std::string sides = side_text(config.placement, plan);
    if (!sides.empty()) add("", sides);
  }
  if (config.batch.micro_batches > 1) add("order", order_text(config));
  add("threads", compute_threads_text(make_compute_threads(config.terrace)));
  add("device", device_text(plan));
  add("host", host_text(plan));
  add_shares(facts, config.placement, plan);
  add("chunks", fmt::format("{} elements, {}", grouped(plan.chunk_elements), plan.chunk_origin));
  if (!plan.engine.empty()) add("engine", plan.engine);
}

std::vector<ReportFact> training_facts(const TrainFlags& flags, const TrainerOptions& options,
                                       const TrainerPlan& plan, const RunStart& start,
                                       const TrainingData& data, double unigram_loss) {
  const TrainConfig& config = options.config;
  std::vector<ReportFact> facts;
  const auto add = [&facts](const char* name, std::string text) {
    facts.push_back({name, std::move(text), false});
  };
  add("model", model_text(flags, options, plan));
  add("weights", weights_text(options, start));
  if (!start.conversion.empty()) add("conversion", start.conversion);
  const std::string trained = trained_text(options, plan);
  if (!trained.empty()) add("trained", trained);
  add("data", data.description());
  add("",
      fmt::format("{} tokens for training, {} held out; unigram loss {:.3f} nats per token",
                  grouped(data.train_token_count()), grouped(data.validation_token_count()), unigram_loss));
  if (options.communicator != nullptr) add("ranks", ranks_text(*options.communicator));
  add("batch", batch_text(options, data));
  add("optimizer", optimizer_text(config));
  add("schedule", schedule_text(config, options.steps));
  add("precision", precision_text(config, options.compute));
  add("parameters", parameters_text(config.placement, plan));
  add("states", states_text(config.placement, plan));
  add("device", fmt::format("{}, {}", format_bytes(plan.device.bytes), plan.device.origin));
  add("host", fmt::format("{}, {}", format_bytes(plan.host.bytes), plan.host.origin));
  const char* name = "disk";
  for (const auto& [path, bytes, least_bytes] : plan.disk) {
    add(std::exchange(name, ""), fmt::format("{}{} in {}, where {} are free", format_bytes(bytes),
                                             config.batch.ranks > 1 ? " for this rank" : "", path.string(),
                                             format_bytes(io::free_bytes_at(path))));
  }
  add_details(facts, options, plan, data);
  return facts;
}

}  // namespace

RunHeader run_header(const TrainFlags& flags, const TrainerOptions& options, const TrainerPlan& plan,
                     const RunStart& start, const TrainingData& data,
                     std::optional<PlanPrediction> prediction) {
  RunHeader header;
  header.version = TERRACE_VERSION;
  header.parameter_count = plan.parameter_count;
  header.planned_steps = options.steps;
  header.unigram_loss = data.unigram_loss();
  header.started_at = utc_now();
  header.facts = training_facts(flags, options, plan, start, data, header.unigram_loss);
  header.model = header.facts.front().text;
  header.machine = machine_facts();
  header.configuration = options.config.resolved;
  header.prediction = std::move(prediction);
  return header;
}

std::string training_header(const std::vector<ReportFact>& facts, bool verbose, size_t width) {
  constexpr size_t kIndent = 14;
  std::string text = "terrace " TERRACE_VERSION "\n";
  for (const ReportFact& fact : facts) {
    if (fact.is_detail && !verbose) continue;
    text +=
        fmt::format("  {:<11} {}\n", fact.name, wrapped(shown_message(fact.text), kIndent, kIndent, width));
  }
  return text;
}

}  // namespace terrace
