// From checked entries to a TrainConfig: inference, defaults, and contradictions between keys.
#include <terrace/runtime/config/train_config.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/memory/flat_space.h>
#include <terrace/runtime/config/config_entries.h>

namespace terrace {
namespace {

constexpr std::string_view kTrainBatch = "train_batch_size";
constexpr std::string_view kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";
constexpr std::string_view kStage = "zero_optimization.stage";
constexpr std::string_view kSubGroup = "zero_optimization.sub_group_size";
constexpr std::string_view kPrefetchBucket = "zero_optimization.stage3_prefetch_bucket_size";
constexpr std::string_view kLearningRate = "optimizer.params.lr";
constexpr std::string_view kWarmupMax = "scheduler.params.warmup_max_lr";
constexpr std::string_view kTotalSteps = "scheduler.params.total_num_steps";

// What every drive and file system with O_DIRECT accepts.
constexpr uint64_t kSector = 4096;
constexpr size_t kLargestFileBytes = 16 * 1024 * 1024;

std::string joined_path(std::string_view section, std::string_view key) {
  return fmt::format("{}.{}", section, key);
}

std::string list_text(const std::vector<double>& values) {
  return values.size() == 1 ? fmt::format("{}", values[0]) : fmt::format("[{}]", fmt::join(values, ", "));
}

// "train_batch_size (ds.json:2:3)"
std::string named(const ConfigEntry& entry) {
  return fmt::format("{} ({})", entry.written_key, entry.written_at);
}

class Resolver {
 public:
  Resolver(const ConfigEntries& entries, ConfigProblems& problems) : entries_(entries), problems_(problems) {}

  TrainConfig resolve() {
    resolve_batch();
    resolve_optimizer();
    resolve_scheduler();
    config_.precision = boolean("bf16.enabled", false, true) ? DataType::bf16 : DataType::fp32;
    config_.gradient_clipping = number("gradient_clipping", 1.0);
    config_.steps_per_print = optional_integer("steps_per_print");
    resolve_zero();
    resolve_aio();
    resolve_terrace();
    warn_without_effect();
    order_resolved();
    return std::move(config_);
  }

 private:
  // The entry when the configuration gives a value; null when it is absent or "auto".
  const ConfigEntry* given(std::string_view path) const {
    const ConfigEntry* entry = entries_.find(path);
    return entry != nullptr && !entry->is_auto ? entry : nullptr;
  }
  // Notes the final value of a key. Where it was not given, it comes `otherwise` from somewhere.
  void record(std::string_view path, std::string value, std::string_view otherwise = "default") {
    const ConfigEntry* entry = entries_.find(path);
    std::string origin(otherwise);
    if (entry != nullptr && (!entry->is_auto || otherwise == "default")) origin = entry->origin();
    recorded_[std::string(path)] = {std::string(path), std::move(value), std::move(origin)};
  }

  bool boolean(std::string_view path, bool by_default, bool when_auto) {
    const ConfigEntry* entry = entries_.find(path);
    const bool value = entry == nullptr ? by_default : entry->is_auto ? when_auto : entry->value.boolean;
    record(path, value ? "true" : "false");
    return value;
  }
  bool boolean(std::string_view path, bool by_default) { return boolean(path, by_default, by_default); }
  double number(std::string_view path, double by_default) {
    const ConfigEntry* entry = given(path);
    const double value = entry != nullptr ? entry->value.number : by_default;
    record(path, fmt::format("{}", value));
    return value;
  }
  uint64_t integer(std::string_view path, uint64_t by_default) {
    const ConfigEntry* entry = given(path);
    const uint64_t value = entry != nullptr ? whole_number(entry->value) : by_default;
    record(path, fmt::format("{}", value));
    return value;
  }
  std::optional<uint64_t> optional_integer(std::string_view path) {
    const ConfigEntry* entry = given(path);
    if (entry != nullptr) return integer(path, 0);
    record(path, "null");
    return std::nullopt;
  }
  std::string text(std::string_view path, std::string_view by_default) {
    const ConfigEntry* entry = given(path);
    const std::string value = entry != nullptr ? entry->value.text : std::string(by_default);
    record(path, value.empty() ? "null" : json_quoted(value));
    return value;
  }
  std::vector<double> numbers(std::string_view path, std::vector<double> by_default) {
    const ConfigEntry* entry = given(path);
    if (entry != nullptr && entry->value.is(JsonNode::Kind::list)) {
      by_default.clear();
      for (const JsonNode& item : entry->value.items) by_default.push_back(item.number);
    } else if (entry != nullptr) {
      by_default = {entry->value.number};
    }
    record(path, list_text(by_default));
    return by_default;
  }

  void resolve_batch();
  void check_batch(const ConfigEntry& train, const ConfigEntry& micro, const ConfigEntry& accumulation);
  void resolve_optimizer();
  void resolve_scheduler();
  void resolve_zero();
  void resolve_device(std::string_view section, Placement& placement, std::filesystem::path& path, bool& pin);
  void check_stage();
  void resolve_aio();
  void resolve_terrace();
  void warn_without_effect();
  void order_resolved();

  const ConfigEntries& entries_;
  ConfigProblems& problems_;
  TrainConfig config_;
  std::map<std::string, ResolvedValue> recorded_;
  std::vector<std::string> more_without_effect_;  // known only once other keys are
};

void Resolver::resolve_batch() {
  const ConfigEntry* train = given(kTrainBatch);
  const ConfigEntry* micro = given(kMicroBatch);
  const ConfigEntry* accumulation = given(kAccumulation);
  uint64_t micro_size = micro != nullptr ? whole_number(micro->value) : 1;
  uint64_t steps = accumulation != nullptr ? whole_number(accumulation->value) : 1;
  std::string micro_origin = "default";
  std::string steps_origin = "default";
  if (train != nullptr) {
    const uint64_t train_size = whole_number(train->value);
    const ConfigEntry* divisor = micro != nullptr ? micro : accumulation;
    if (micro != nullptr && accumulation != nullptr) {
      check_batch(*train, *micro, *accumulation);
    } else if (divisor != nullptr && train_size % whole_number(divisor->value) != 0) {
      problems_.add(train->written_at,
                    fmt::format("{} is {}, which is not a multiple of {}, {}", train->written_key, train_size,
                                named(*divisor), whole_number(divisor->value)));
    } else if (micro != nullptr) {
      steps = train_size / micro_size;
      steps_origin = fmt::format("from {} and {}", kTrainBatch, kMicroBatch);
    } else {
      micro_size = train_size / steps;
      micro_origin = accumulation != nullptr ? fmt::format("from {} and {}", kTrainBatch, kAccumulation)
                                             : fmt::format("from {}", kTrainBatch);
    }
  }
  config_.batch.micro_batch_size = static_cast<uint32_t>(micro_size);
  config_.batch.accumulation_steps = static_cast<uint32_t>(steps);
  record(kTrainBatch, fmt::format("{}", config_.batch.train_batch_size()),
         fmt::format("from {} and {}", kMicroBatch, kAccumulation));
  record(kMicroBatch, fmt::format("{}", micro_size), micro_origin);
  record(kAccumulation, fmt::format("{}", steps), steps_origin);
}

void Resolver::check_batch(const ConfigEntry& train, const ConfigEntry& micro,
                           const ConfigEntry& accumulation) {
  const uint64_t product = whole_number(micro.value) * whole_number(accumulation.value);
  if (whole_number(train.value) == product) return;
  problems_.add(train.written_at,
                fmt::format("{} is {}, but {} x {} is {} x {} = {} in one process", train.written_key,
                            whole_number(train.value), named(micro), named(accumulation),
                            whole_number(micro.value), whole_number(accumulation.value), product));
}

void Resolver::resolve_optimizer() {
  OptimizerConfig& optimizer = config_.optimizer;
  const bool is_adamw = text("optimizer.type", "AdamW") == "AdamW";
  optimizer.learning_rate = number(kLearningRate, optimizer.learning_rate);
  const std::vector<double> betas = numbers("optimizer.params.betas", {optimizer.beta1, optimizer.beta2});
  if (betas.size() == 2) {
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
  } else {
    const ConfigEntry& entry = *given("optimizer.params.betas");
    problems_.add(entry.written_at,
                  fmt::format("{} has {} values; it needs two", entry.written_key, betas.size()));
  }
  optimizer.epsilon = number("optimizer.params.eps", optimizer.epsilon);
  optimizer.weight_decay = number("optimizer.params.weight_decay", optimizer.weight_decay);
  optimizer.bias_correction = boolean("optimizer.params.bias_correction", optimizer.bias_correction);
  optimizer.decoupled_weight_decay = boolean("optimizer.params.adam_w_mode", true);
  const ConfigEntry* type = given("optimizer.type");
  if (is_adamw && !optimizer.decoupled_weight_decay) {
    const ConfigEntry& mode = *given("optimizer.params.adam_w_mode");
    problems_.add(mode.written_at,
                  fmt::format("{} is false, but {} is AdamW; set the type to Adam", mode.written_key,
                              type != nullptr ? named(*type) : "optimizer.type (default)"));
  }
}

void Resolver::resolve_scheduler() {
  LrScheduleOptions& schedule = config_.schedule;
  const std::string type = text("scheduler.type", "");
  schedule.base_lr = {config_.optimizer.learning_rate};
  if (type.empty()) {
    for (const auto& [path, entry] : entries_.all()) {
      if (path.starts_with("scheduler.params."))
        problems_.add(entry.written_at,
                      fmt::format("{} is given, but scheduler.type is not", entry.written_key));
    }
    return;
  }
  const bool decays = type == "WarmupDecayLR";
  schedule.kind = decays ? LrScheduleKind::warmup_decay : LrScheduleKind::warmup;
  schedule.minimum_lr = numbers("scheduler.params.warmup_min_lr", {0.0});
  const bool default_is_lr = !decays || entries_.find(kWarmupMax) != nullptr;  // "auto" is lr for both
  schedule.maximum_lr = numbers(kWarmupMax, {default_is_lr ? config_.optimizer.learning_rate : 1e-3});
  if (schedule.minimum_lr.size() > 1 && schedule.maximum_lr.size() > 1 &&
      schedule.minimum_lr.size() != schedule.maximum_lr.size()) {
    const ConfigEntry& maximum = *given(kWarmupMax);
    problems_.add(maximum.written_at,
                  fmt::format("{} and {} are lists of different lengths", maximum.written_key,
                              named(*given("scheduler.params.warmup_min_lr"))));
  }
  schedule.warmup_step_count = integer("scheduler.params.warmup_num_steps", schedule.warmup_step_count);
  schedule.warmup_shape =
      text("scheduler.params.warmup_type", "log") == "log" ? WarmupShape::log : WarmupShape::linear;
  const ConfigEntry* total = entries_.find(kTotalSteps);
  if (decays) {
    schedule.total_step_count = optional_integer(kTotalSteps);
    if (schedule.total_step_count && *schedule.total_step_count < schedule.warmup_step_count) {
      config_.warnings.push_back(
          fmt::format("{} is {}, less than the {} steps of warm-up: the rate never reaches its peak",
                      named(*total), *schedule.total_step_count, schedule.warmup_step_count));
    }
  } else if (total != nullptr) {
    more_without_effect_.push_back(total->written_key + " (WarmupLR does not decay)");
  }
  const ConfigEntry* rate = given(kLearningRate);
  const bool differs = schedule.maximum_lr != std::vector<double>{config_.optimizer.learning_rate};
  if (rate != nullptr && differs) {
    const ConfigEntry* maximum = given(kWarmupMax);
    config_.warnings.push_back(
        fmt::format("{} has no effect: {} sets the learning rate", named(*rate),
                    maximum != nullptr ? named(*maximum) : std::string(kWarmupMax) + " (default)"));
  }
}

void Resolver::resolve_device(std::string_view section, Placement& placement, std::filesystem::path& path,
                              bool& pin) {
  const std::string device_key = joined_path(section, "device");
  const std::string path_key = joined_path(section, "nvme_path");
  placement = *placement_from_name(text(device_key, "none"));
  pin = boolean(joined_path(section, "pin_memory"), true);
  path = text(path_key, "");
  if (placement == Placement::nvme && path.empty()) {
    const ConfigEntry& device = *given(device_key);
    problems_.add(device.written_at,
                  fmt::format("{} is nvme, but {} is not given", device.written_key, path_key));
  }
  const ConfigEntry* path_entry = given(path_key);
  if (placement != Placement::nvme && path_entry != nullptr) {
    more_without_effect_.push_back(
        fmt::format("{} (its device is {})", path_entry->written_key, name_of(placement)));
    path.clear();
  }
}

// Files must say a stage that allows what they ask for; a flag that asks for a placement is enough by itself.
void Resolver::check_stage() {
  const ConfigEntry* stage_entry = given(kStage);
  const std::string stage = fmt::format(
      "{} is {}", stage_entry != nullptr ? named(*stage_entry) : std::string(kStage) + " (default)",
      config_.zero_stage);
  const auto require = [&](std::string_view section, Placement placement, uint32_t least) {
    const ConfigEntry* device = given(joined_path(section, "device"));
    if (placement == Placement::none || device->from_override || config_.zero_stage >= least) return;
    problems_.add(device->written_at,
                  fmt::format("{} is {}, but {}; it needs {}", device->written_key, json_text(device->value),
                              stage, least == 3 ? "stage 3" : "stage 1, 2 or 3"));
  };
  require("zero_optimization.offload_param", config_.placement.parameters, 3);
  require("zero_optimization.offload_optimizer", config_.placement.states, 1);
  if (config_.placement.states == Placement::nvme && (config_.zero_stage == 1 || config_.zero_stage == 2)) {
    config_.warnings.push_back(
        fmt::format("{}: optimizer states go to nvme, where DeepSpeed would use host memory", stage));
  }
}

void Resolver::resolve_zero() {
  config_.zero_stage = static_cast<uint32_t>(integer(kStage, 0));
  PlacementConfig& placement = config_.placement;
  resolve_device("zero_optimization.offload_param", placement.parameters, placement.parameter_path,
                 placement.pin_parameters);
  resolve_device("zero_optimization.offload_optimizer", placement.states, placement.state_path,
                 placement.pin_states);
  check_stage();
  const uint64_t sub_group = integer(kSubGroup, 1'000'000'000);
  config_.max_chunk_elements = sub_group / kTileElements * kTileElements;
  config_.max_prefetch_elements = optional_integer(kPrefetchBucket);
}

void Resolver::resolve_aio() {
  config_.aio.block_bytes = optional_integer("aio.block_size");
  if (config_.aio.block_bytes && *config_.aio.block_bytes % kSector != 0) {
    const ConfigEntry& block = *given("aio.block_size");
    problems_.add(block.written_at, fmt::format("{} is {}, which is not a multiple of {}", block.written_key,
                                                *config_.aio.block_bytes, kSector));
  }
  const auto small = [](std::optional<uint64_t> value) {
    return value ? std::optional<uint32_t>(static_cast<uint32_t>(*value)) : std::nullopt;
  };
  config_.aio.queue_depth = small(optional_integer("aio.queue_depth"));
  config_.aio.thread_count = small(optional_integer("aio.intra_op_parallelism"));
}

void Resolver::resolve_terrace() {
  TerraceConfig& own = config_.terrace;
  own.device_memory_bytes = optional_integer("terrace.device_memory");
  own.host_memory_bytes = optional_integer("terrace.host_memory");
  own.chunk_elements = optional_integer("terrace.chunk_elements");
  own.policy = text("terrace.policy", "opt") == "opt" ? PolicyKind::opt : PolicyKind::lru;
  own.engine = io::engine_kind_from_name(text("terrace.engine", "auto"));
  own.prefetch_uses = static_cast<uint32_t>(integer("terrace.prefetch_depth", own.prefetch_uses));
  own.strict = boolean("terrace.strict", own.strict);
  own.verify_checksums = boolean("terrace.verify_checksums", own.verify_checksums);
  own.thread_count = static_cast<uint32_t>(integer("terrace.threads", own.thread_count));
  own.seed = integer("terrace.seed", own.seed);

  if (own.chunk_elements) {
    const ConfigEntry& chunk = *given("terrace.chunk_elements");
    if (*own.chunk_elements % kTileElements != 0) {
      problems_.add(chunk.written_at, fmt::format("{} is {}, which is not a multiple of {}",
                                                  chunk.written_key, *own.chunk_elements, kTileElements));
    }
    const ConfigEntry* sub_group = given(kSubGroup);
    if (sub_group != nullptr && *own.chunk_elements > config_.max_chunk_elements) {
      problems_.add(chunk.written_at,
                    fmt::format("{} is {}, more than {}, {}", chunk.written_key, *own.chunk_elements,
                                named(*sub_group), whole_number(sub_group->value)));
    }
  }
  const ConfigEntry* depth = given("terrace.prefetch_depth");
  if (depth != nullptr && own.prefetch_uses > 0 && config_.max_prefetch_elements == uint64_t{0}) {
    problems_.add(depth->written_at,
                  fmt::format("{} is {}, but {} is 0, which turns prefetch off", depth->written_key,
                              own.prefetch_uses, named(*given(kPrefetchBucket))));
  }
}

void Resolver::warn_without_effect() {
  std::vector<std::string> keys = entries_.without_effect();
  keys.insert(keys.end(), more_without_effect_.begin(), more_without_effect_.end());
  if (keys.empty()) return;
  config_.warnings.push_back(
      fmt::format("known keys without effect here (docs/config.md says why): {}", fmt::join(keys, ", ")));
}

void Resolver::order_resolved() {
  for (const SchemaKey& row : schema()) {
    const auto found = recorded_.find(row.path());
    if (found != recorded_.end()) config_.resolved.push_back(found->second);
  }
}

std::string read_file(const std::filesystem::path& path) {
  const auto fail = [&](std::string reason) {
    throw Error(ErrorKind::config, {"cannot read the configuration", path.string(), std::move(reason),
                                    "give the path of a DeepSpeed JSON file"});
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail("it is a folder");
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail(system_reason(errno));
  std::string text(kLargestFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) fail(system_reason(errno));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kLargestFileBytes) fail("it is larger than 16 MiB");
  return text;
}

}  // namespace

TrainConfig parse_train_config(std::string_view text, std::string_view name,
                               std::span<const ConfigOverride> overrides) {
  const JsonNode document = parse_json(text, name);
  ConfigProblems problems;
  const ConfigEntries entries(document, overrides, problems);
  problems.throw_if_any();
  TrainConfig config = Resolver(entries, problems).resolve();
  problems.throw_if_any();
  return config;
}

TrainConfig load_train_config(const std::filesystem::path& path, std::span<const ConfigOverride> overrides) {
  return parse_train_config(read_file(path), path.string(), overrides);
}

TrainConfig default_train_config(std::span<const ConfigOverride> overrides) {
  return parse_train_config("{}", "defaults", overrides);
}

}  // namespace terrace
