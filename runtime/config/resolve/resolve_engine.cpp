// What the engine for Python takes of a configuration. It has a model and a loop already, so that what says
// how the program computes, reports and works with other ranks has no effect in it, or is refused.
#include <fmt/format.h>

#include <charconv>

#include <terrace/runtime/config/resolve/internal/resolver.h>
#include <terrace/runtime/config/schema/engine_keys.h>

namespace terrace {
namespace {

constexpr std::string_view kLastStep = "scheduler.params.total_num_steps";
constexpr std::string_view kParameterPath = "zero_optimization.offload_param.nvme_path";
constexpr std::string_view kStatePath = "zero_optimization.offload_optimizer.nvme_path";

bool is_default(const ConfigEntry& entry) {
  const std::string_view text = entry.row->default_text;
  if (!entry.value.is(JsonNode::Kind::number))
    return text == (entry.value.is(JsonNode::Kind::text) ? entry.value.text : json_text(entry.value));
  double number = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && !text.empty() &&
         number == entry.value.number;
}

}  // namespace

bool Resolver::asks_for_nothing(const ConfigEntry& entry) const {
  return for_engine_ && (entry.is_auto || is_default(entry));
}

TrainConfig Resolver::resolve_for_engine(const EngineConfigOptions& options) {
  for_engine_ = true;
  brings_optimizer_ = options.brings_optimizer;
  config_.batch.ranks = options.ranks;
  resolve_batch();
  require_whole_rounds();
  resolve_optimizer();
  if (!options.brings_schedule) {
    resolve_scheduler();
    require_steps(options.total_step_count);
  }
  resolve_precision();
  text("data_types.buffer_dtype", "");
  config_.gradient_clipping = number("gradient_clipping", 0.0);
  config_.batch.layer_major = text("terrace.microbatch_order", "batch") == "layer";
  resolve_zero();
  require_one_space();
  resolve_activation_offload();
  place_activations();
  config_.terrace.device = *device_choice_from_name(text("terrace.device", "simulated"));
  resolve_meeting();
  resolve_exchange();
  resolve_store();
  resolve_durability();
  resolve_monitor();
  resolve_services();
  resolve_engine_keys();
  order_resolved();
  return std::move(config_);
}

void Resolver::require_steps(std::optional<uint64_t> total_step_count) {
  LrScheduleOptions& schedule = config_.schedule;
  if (!needs_total(schedule.kind) || schedule.total_step_count) return;
  schedule.total_step_count = total_step_count;
  if (total_step_count)
    return record(kLastStep, fmt::format("{}", *total_step_count), "the steps of the run");
  const ConfigEntry* const entry = entries_.find(kLastStep);
  problems_.add(
      {.origin = entry != nullptr ? entry->written_at : "",
       .key = std::string(kLastStep),
       .text = fmt::format("{} ends with the run, whose steps are not known", name_of(schedule.kind)),
       .advice = "give it, or total_steps"});
}

// A loop in Python has no pass without a micro-batch.
void Resolver::require_whole_rounds() {
  const BatchConfig& batch = config_.batch;
  if (batch.ranks == 1 || batch.micro_batches % batch.ranks == 0) return;
  const ConfigEntry* const entry = given("train_batch_size");
  problems_.add({.origin = entry != nullptr ? entry->written_at : "",
                 .key = "train_batch_size",
                 .text = fmt::format("a step has {} micro-batches, which {} ranks cannot share evenly",
                                     batch.micro_batches, batch.ranks),
                 .advice = "start as many ranks as divide the micro-batches, or change train_batch_size"});
}

// Parameters and states of a store are in one space.
void Resolver::require_one_space() {
  const PlacementConfig& placement = config_.placement;
  if (placement.parameters != Placement::nvme || placement.states != Placement::nvme) return;
  if (placement.parameter_paths == placement.state_paths) return;
  problems_.add(*given(kStatePath), fmt::format("{} is another one than that of offload_param", kStatePath),
                "name the same folders for both");
}

// Services that monitors send scalars to. What is not given is theirs to know.
void Resolver::resolve_services() {
  boolean("wandb.enabled", false);
  text("wandb.project", "deepspeed");
  for (const std::string_view key : {"wandb.group", "wandb.team"}) text(key, "");
  boolean("comet.enabled", false);
  integer("comet.samples_log_interval", 100);
  for (const std::string_view key :
       {"comet.project", "comet.workspace", "comet.api_key", "comet.experiment_name", "comet.experiment_key"})
    text(key, "");
  text("comet.mode", "get_or_create");
  const ConfigEntry* const online = given("comet.online");
  record("comet.online", online == nullptr ? "null" : json_text(online->value));
}

// Folders may be there for activations alone.
void Resolver::place_activations() {
  PlacementConfig& placement = config_.placement;
  const ActivationOffload offload = config_.activations.offload;
  const bool takes_nvme = offload == ActivationOffload::nvme || offload == ActivationOffload::automatic;
  if (!takes_nvme || placement.parameters == Placement::nvme || placement.states == Placement::nvme) return;
  for (const std::string_view path : {kStatePath, kParameterPath}) {
    const ConfigEntry* const entry = given(path);
    if (entry == nullptr) continue;
    placement.state_paths = folders(path);
    std::erase_if(idle_, [&](const IdleKey& key) { return key.key == entry->written_key; });
    return;
  }
  if (offload == ActivationOffload::automatic) return;
  const ConfigEntry& own = *given("terrace.offload_activations");
  problems_.add({.origin = own.written_at,
                 .key = std::string(kStatePath),
                 .text = fmt::format("{} is nvme, but {} is not given", own.written_key, kStatePath),
                 .cause = ErrorCause::no_path});
}

void Resolver::resolve_engine_keys() {
  const auto refuse = [&](const std::string& origin, const std::string& written, const EngineKey& key) {
    problems_.add({.origin = origin,
                   .key = written,
                   .text = fmt::format("{}: the package for Python does not do this", written),
                   .advice = std::string(key.note)});
  };
  for (const auto& [path, entry] : entries_.all()) {
    const EngineKey* const key = engine_key(path);
    if (key == nullptr || asks_for_nothing(entry)) continue;
    if (key->effect == EngineEffect::refused) refuse(entry.written_at, entry.written_key, *key);
    if (key->effect == EngineEffect::idle)
      idle_.push_back({entry.written_key, "the program alone has a use for it"});
  }
  for (const auto& [path, origin] : entries_.sections()) {
    const EngineKey* const key = engine_key(path);
    if (key != nullptr && key->effect == EngineEffect::refused) refuse(origin, path, *key);
  }
}

std::vector<std::string> Resolver::lines_without_effect() const {
  std::vector<std::string> lines;
  for (const auto* keys : {&entries_.without_effect(), &idle_}) {
    for (const IdleKey& key : *keys)
      lines.push_back(fmt::format("{}: {}", key.key, key.reason.empty() ? key.row->note : key.reason));
  }
  return lines;
}

}  // namespace terrace
