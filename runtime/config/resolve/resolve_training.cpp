// Batch, precision, activations and monitors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/most_micro_batches.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kTrainBatch = "train_batch_size";
constexpr std::string_view kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";
constexpr std::string_view kMicroBatches = "terrace.micro_batches";
constexpr std::string_view kCpuCheckpointing = "activation_checkpointing.cpu_checkpointing";
constexpr std::string_view kOffload = "terrace.offload_activations";

std::optional<DataType> data_type_from(std::string_view name) {
  if (name == "fp32" || name == "float32" || name == "float") return DataType::fp32;
  if (name == "bf16" || name == "bfloat16") return DataType::bf16;
  if (name == "fp16" || name == "float16" || name == "half") return DataType::fp16;
  return std::nullopt;
}

// What makes fewer micro-batches: the key that made the number.
std::string fewer_micro_batches(bool by_accumulation, uint64_t ranks) {
  if (!by_accumulation) return fmt::format("raise {}, or lower {}", kMicroBatch, kTrainBatch);
  const uint64_t most = kMostMicroBatches / ranks;
  return fmt::format("lower {} to {}{}", kAccumulation, most, most > 1 ? " or less" : "");
}

}  // namespace

void Resolver::resolve_batch() {
  const ConfigEntry* train = given(kTrainBatch);
  const ConfigEntry* micro = given(kMicroBatch);
  const ConfigEntry* accumulation = given(kAccumulation);
  const uint64_t ranks = config_.batch.ranks;
  if (given(kMicroBatches) != nullptr) return resolve_given_micro_batches();
  uint64_t micro_size = micro != nullptr ? whole_number(micro->value) : 1;
  uint64_t steps = accumulation != nullptr ? whole_number(accumulation->value) : 1;
  uint64_t micro_batches = steps * ranks;
  std::string micro_origin = "default";
  std::string steps_origin = "default";
  if (train != nullptr) {
    const uint64_t train_size = whole_number(train->value);
    const ConfigEntry* divisor = micro != nullptr ? micro : accumulation;
    // The micro-batches of a step: of all ranks, where their number is known.
    const uint64_t divisor_value = micro != nullptr ? micro_size : steps * ranks;
    if (micro != nullptr && accumulation != nullptr) {
      check_batch(*train, *micro, *accumulation);
    } else if (train_size % divisor_value != 0) {
      problems_.add(
          *train,
          divisor == nullptr
              ? fmt::format("{} is {}, which is not a multiple of the {} ranks", train->written_key,
                            train_size, ranks)
              : fmt::format("{} is {}, which is not a multiple of {}, {}{}", train->written_key, train_size,
                            named(*divisor), whole_number(divisor->value),
                            micro == nullptr && ranks > 1 ? fmt::format(", on {} ranks", ranks) : ""));
    } else if (micro != nullptr) {
      micro_batches = train_size / micro_size;
      steps = (micro_batches - 1) / ranks + 1;
      steps_origin = fmt::format("from {} and {}", kTrainBatch, kMicroBatch);
    } else {
      micro_size = train_size / divisor_value;
      micro_origin = accumulation != nullptr ? fmt::format("from {} and {}", kTrainBatch, kAccumulation)
                                             : fmt::format("from {}", kTrainBatch);
    }
  }
  if (micro_batches > kMostMicroBatches) {
    const ConfigEntry& cause = accumulation != nullptr ? *accumulation : *train;
    problems_.add(
        cause,
        fmt::format("{} makes a step of {} micro-batches; each is planned by itself, and {} are the most: {}",
                    cause.written_key, micro_batches, kMostMicroBatches,
                    fewer_micro_batches(accumulation != nullptr, ranks)));
  }
  config_.batch.micro_batch_size = static_cast<uint32_t>(micro_size);
  config_.batch.micro_batches = static_cast<uint32_t>(micro_batches);
  record_batch(kAccumulation, micro_origin, steps_origin);
  record(kMicroBatches, fmt::format("{}", micro_batches),
         accumulation != nullptr ? fmt::format("from {} and the ranks", kAccumulation)
         : train != nullptr      ? fmt::format("from {} and {}", kTrainBatch, kMicroBatch)
                                 : "default");
}

// `count` is the key that says how many micro-batches there are.
void Resolver::record_batch(std::string_view count, const std::string& micro_origin,
                            const std::string& steps_origin) {
  const BatchConfig& batch = config_.batch;
  record(kTrainBatch, fmt::format("{}", batch.train_batch_size()),
         fmt::format("from {} and {}", kMicroBatch, count));
  record(kMicroBatch, fmt::format("{}", batch.micro_batch_size), micro_origin);
  record(kAccumulation, fmt::format("{}", batch.rounds().count()), steps_origin);
}

// The two keys that say it otherwise may only repeat it.
void Resolver::resolve_given_micro_batches() {
  const ConfigEntry& given_count = *given(kMicroBatches);
  const uint64_t count = whole_number(given_count.value), ranks = config_.batch.ranks;
  const ConfigEntry* const train = given(kTrainBatch);
  const ConfigEntry* const micro = given(kMicroBatch);
  const ConfigEntry* const accumulation = given(kAccumulation);
  uint64_t micro_size = micro != nullptr ? whole_number(micro->value) : 1;
  const auto contradicts = [&](const ConfigEntry& other, std::string makes) {
    problems_.add(given_count,
                  fmt::format("{} is {}, but {} is {}{}; leave one of the two out", given_count.written_key,
                              count, named(other), whole_number(other.value), makes));
  };
  if (accumulation != nullptr && whole_number(accumulation->value) * ranks != count)
    contradicts(*accumulation, ranks == 1 ? "" : fmt::format(" on each of {} ranks", ranks));
  if (train != nullptr) {
    const uint64_t batch = whole_number(train->value);
    if (micro == nullptr && batch % count == 0) {
      micro_size = batch / count;
    } else if (micro_size * count != batch) {
      contradicts(*train, micro == nullptr
                              ? ", which is not a multiple of it"
                              : fmt::format(" in micro-batches of {} ({})", micro_size, named(*micro)));
    }
  }
  config_.batch.micro_batch_size = static_cast<uint32_t>(micro_size);
  config_.batch.micro_batches = static_cast<uint32_t>(count);
  record_batch(kMicroBatches,
               micro == nullptr && train != nullptr
                   ? fmt::format("from {} and {}", kTrainBatch, kMicroBatches)
                   : "default",
               fmt::format("from {}", kMicroBatches));
  record(kMicroBatches, fmt::format("{}", count));
}

void Resolver::check_batch(const ConfigEntry& train, const ConfigEntry& micro,
                           const ConfigEntry& accumulation) {
  const uint64_t ranks = config_.batch.ranks;
  const uint64_t product = whole_number(micro.value) * whole_number(accumulation.value) * ranks;
  if (whole_number(train.value) == product) return;
  const uint64_t batch = whole_number(train.value);
  const uint64_t micro_size = whole_number(micro.value);
  const std::string advice =
      batch % (micro_size * ranks) == 0
          ? fmt::format("{} {} keeps the batch", kAccumulation, batch / (micro_size * ranks))
          : "leave one of the three out";
  const std::string where = ranks == 1 ? "in one process" : fmt::format("on {} ranks", ranks);
  const bool of_more = ranks == 1 && batch % product == 0;
  const std::string on_more = of_more ? fmt::format(", which is {} on {} ranks", batch, batch / product) : "";
  const std::string times = ranks == 1 ? "" : fmt::format(" x {}", ranks);
  problems_.add(train,
                fmt::format("{} is {}, but {} x {} is {} x {}{} = {} {}{}", train.written_key, batch,
                            named(micro), named(accumulation), micro_size, whole_number(accumulation.value),
                            times, product, where, on_more),
                advice);
}

void Resolver::resolve_precision() {
  const bool fp16 = boolean("fp16.enabled", false);
  const bool bf16 = boolean("bf16.enabled", false, !fp16);
  if (fp16 && bf16) {
    const ConfigEntry& half = *entries_.find("fp16.enabled");
    const ConfigEntry& brain = *entries_.find("bf16.enabled");
    problems_.add(
        half, fmt::format("{} and {} are both true: parameters have one precision, set one of them to false",
                          half.written_key, named(brain)));
  }
  config_.precision = fp16 ? DataType::fp16 : bf16 ? DataType::bf16 : DataType::fp32;
  resolve_loss_scale(fp16);
  resolve_moments();
  resolve_accumulation_type();
}

void Resolver::resolve_loss_scale(bool enabled) {
  Fp16Config& fp16 = config_.fp16;
  fp16.loss_scale = number("fp16.loss_scale", fp16.loss_scale);
  fp16.initial_scale_power = small("fp16.initial_scale_power", fp16.initial_scale_power);
  fp16.loss_scale_window = small("fp16.loss_scale_window", fp16.loss_scale_window);
  fp16.hysteresis = small("fp16.hysteresis", fp16.hysteresis);
  fp16.consecutive_hysteresis = boolean("fp16.consecutive_hysteresis", fp16.consecutive_hysteresis);
  fp16.min_loss_scale = number("fp16.min_loss_scale", fp16.min_loss_scale);
  const bool dynamic = fp16.loss_scale == 0;
  check_loss_scale(enabled);
  for (const std::string_view key : {"loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
                                     "consecutive_hysteresis", "min_loss_scale"}) {
    const ConfigEntry* entry = given(joined_path("fp16", key));
    if (entry == nullptr) continue;
    if (!enabled && !asks_for_nothing(*entry)) idle_.push_back({entry->written_key, "fp16.enabled is false"});
    if (enabled && !dynamic && key != "loss_scale")
      idle_.push_back({entry->written_key, "fp16.loss_scale is not 0"});
    const bool needs_more = key == "loss_scale_window" || key == "min_loss_scale";
    if (enabled && dynamic && needs_more && entry->value.number <= 0) {
      problems_.add(
          *entry,
          fmt::format("{} is 0, but the loss scale is dynamic (fp16.loss_scale is 0); it must be above 0",
                      entry->written_key));
    }
  }
}

// A scale is an fp32 number above 0, and a dynamic one never falls below its least.
void Resolver::check_loss_scale(bool enabled) {
  const Fp16Config& fp16 = config_.fp16;
  constexpr std::string_view scale_key = "fp16.loss_scale";
  constexpr std::string_view least_key = "fp16.min_loss_scale";
  constexpr double smallest = std::numeric_limits<float>::min();
  for (const std::string_view path : {scale_key, least_key}) {
    const ConfigEntry* entry = given(path);
    if (entry == nullptr || entry->value.number == 0 || entry->value.number >= smallest) continue;
    problems_.add(*entry, fmt::format("{} is {}, less than {:.3g}, the smallest that fp32 can hold",
                                      entry->written_key, entry->value.number, smallest));
  }
  const ConfigEntry* least = given(least_key);
  const double first = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power));
  if (!enabled || fp16.loss_scale != 0 || least == nullptr || fp16.min_loss_scale <= first) return;
  problems_.add(*least,
                fmt::format("{} is {}, more than the scale that the run begins with, {} "
                            "(2 to the power of fp16.initial_scale_power, {})",
                            least->written_key, fp16.min_loss_scale, first, fp16.initial_scale_power));
}

void Resolver::resolve_accumulation_type() {
  constexpr std::string_view path = "data_types.grad_accum_dtype";
  config_.grad_accum_type = data_type_from(text(path, ""));
  const DataType type = config_.grad_accum_type.value_or(DataType::fp32);
  if (type == DataType::fp32 || type == config_.precision) return;
  const ConfigEntry& entry = *given(path);
  problems_.add(entry, fmt::format("{} is {}, but parameters are {}; it must be fp32 or the same",
                                   entry.written_key, name_of(type), name_of(config_.precision)));
}

std::optional<ActivationOffload> activation_offload_from_name(std::string_view name) {
  if (name == "none") return ActivationOffload::none;
  if (name == "cpu") return ActivationOffload::cpu;
  if (name == "nvme") return ActivationOffload::nvme;
  if (name == "auto") return ActivationOffload::automatic;
  return std::nullopt;
}

void Resolver::resolve_activations() {
  constexpr std::string_view count_path = "activation_checkpointing.number_checkpoints";
  constexpr std::string_view checkpoint_path = "terrace.checkpoint_activations";
  ActivationConfig& activations = config_.activations;
  activations.checkpoint = boolean(checkpoint_path, activations.checkpoint);
  activations.checkpoint_count = static_cast<uint32_t>(optional_integer(count_path).value_or(0));
  resolve_activation_offload();
  if (activations.checkpoint) return;
  const std::string switched_off = fmt::format("{} is false", named(*given(checkpoint_path)));
  if (activations.offload == ActivationOffload::automatic) activations.offload = ActivationOffload::none;
  if (activations.offload != ActivationOffload::none) {
    const ConfigEntry& place = given(kOffload) != nullptr ? *given(kOffload) : *given(kCpuCheckpointing);
    problems_.add(place, fmt::format("{} is {}, but {}: there are no kept inputs to move", place.written_key,
                                     json_text(place.value), switched_off));
  }
  if (activations.checkpoint_count > 0) {
    const ConfigEntry& count = *given(count_path);
    problems_.add(count, fmt::format("{} is {}, but {}", count.written_key, activations.checkpoint_count,
                                     switched_off));
  }
}

void Resolver::resolve_activation_offload() {
  ActivationConfig& activations = config_.activations;
  const bool to_host = boolean(kCpuCheckpointing, false);
  const std::string place = text(kOffload, to_host ? "cpu" : "none");
  activations.offload = *activation_offload_from_name(place);
  const ConfigEntry* const own = given(kOffload);
  if (!to_host || own == nullptr || activations.offload == ActivationOffload::cpu) return;
  problems_.add(*own, fmt::format("{} is {}, but {} is true, which is cpu", own->written_key, place,
                                  named(*given(kCpuCheckpointing))));
}

void Resolver::check_activation_offload() {
  const PlacementConfig& placement = config_.placement;
  if (config_.activations.offload != ActivationOffload::nvme) return;
  if (placement.parameters == Placement::nvme || placement.states == Placement::nvme) return;
  const ConfigEntry& own = *given(kOffload);
  problems_.add(own,
                fmt::format("{} is nvme, but nothing else is: place optimizer states or parameters there too "
                            "(zero_optimization.offload_optimizer.device, offload_param.device)",
                            own.written_key));
}

// Layer by layer the inputs of layers are all that can be kept of so many micro-batches.
void Resolver::resolve_order() {
  constexpr std::string_view order_path = "terrace.microbatch_order";
  const bool by_layer = text(order_path, "batch") == "layer";
  config_.batch.layer_major = by_layer && config_.batch.rounds().count() > 1;
  if (by_layer && !config_.batch.layer_major)
    idle_.push_back({given(order_path)->written_key, fmt::format("{} is 1", kAccumulation)});
  if (!config_.batch.layer_major || config_.activations.checkpoint) return;
  config_.activations.checkpoint = true;
  idle_.push_back({given("terrace.checkpoint_activations")->written_key,
                   fmt::format("{} is layer: layers are computed again", order_path)});
}

void Resolver::resolve_monitor() {
  resolve_monitor_target("tensorboard", config_.monitor.tensorboard);
  resolve_monitor_target("csv_monitor", config_.monitor.csv);
  config_.wall_clock_breakdown = boolean("wall_clock_breakdown", false);
}

void Resolver::resolve_monitor_target(std::string_view section, MonitorTarget& target) {
  target.enabled = boolean(joined_path(section, "enabled"), false);
  target.output_path = text(joined_path(section, "output_path"), "");
  const std::string job_key = joined_path(section, "job_name");
  target.job_name = text(job_key, target.job_name);
  const std::filesystem::path job = target.job_name;
  const auto leaves = [](const std::filesystem::path& part) { return part == ".."; };
  if (job.is_relative() && std::none_of(job.begin(), job.end(), leaves)) return;
  const ConfigEntry& entry = *given(job_key);
  problems_.add(entry, fmt::format("{} is {}: it is a folder in {}.output_path, and cannot leave it",
                                   entry.written_key, json_quoted(target.job_name, 60), section));
}

}  // namespace terrace
