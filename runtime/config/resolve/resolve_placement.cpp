// Stages, offload, file I/O and the keys of our own.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/aio/engine_limits.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kStage = "zero_optimization.stage";
constexpr std::string_view kSubGroup = "zero_optimization.sub_group_size";
constexpr std::string_view kPrefetchBucket = "zero_optimization.stage3_prefetch_bucket_size";
constexpr std::string_view kCompact = "terrace.compact_state";
constexpr std::string_view kUpdate = "terrace.update";
constexpr std::string_view kGpuProducts = "terrace.gpu_products";
constexpr std::string_view kCompute = "terrace.compute";
constexpr std::string_view kRatio = "zero_optimization.offload_optimizer.ratio";
constexpr std::string_view kGds = "aio.use_gds";

}  // namespace

// A folder named twice would be taken for two drives. Other names of one folder only the machine knows.
std::vector<std::filesystem::path> Resolver::folders(std::string_view path) {
  std::vector<std::filesystem::path> values;
  std::vector<std::filesystem::path> plain;
  const ConfigEntry* entry = given(path);
  if (entry == nullptr || entry->value.items.empty()) {
    record(path, "null");
    return values;
  }
  for (const JsonNode& item : entry->value.items) {
    values.emplace_back(item.text);
    plain.push_back((values.back() / "").lexically_normal());  // "/a", "/a/" and "/b/../a" are "/a/"
    if (std::find(plain.begin(), plain.end() - 1, plain.back()) == plain.end() - 1) continue;
    problems_.add(
        {.origin = entry->from_override ? entry->written_at : item.origin,
         .key = entry->written_key,
         .text = fmt::format("{} names the folder {} twice", entry->written_key, json_quoted(item.text))});
  }
  record(path, values.size() == 1 ? json_quoted(values.front().string()) : json_text(entry->value));
  return values;
}

void Resolver::resolve_device(std::string_view section, Placement& placement,
                              std::vector<std::filesystem::path>& paths, bool& pin) {
  const std::string device_key = joined_path(section, "device");
  const std::string path_key = joined_path(section, "nvme_path");
  placement = *placement_from_name(text(device_key, "none"));
  pin = boolean(joined_path(section, "pin_memory"), true);
  paths = folders(path_key);
  if (placement == Placement::nvme && paths.empty()) {
    const ConfigEntry& device = *given(device_key);
    problems_.add({.origin = device.written_at,
                   .key = path_key,
                   .text = fmt::format("{} is nvme, but {} is not given", device.written_key, path_key),
                   .cause = ErrorCause::no_path});
  }
  const ConfigEntry* path_entry = given(path_key);
  if (placement != Placement::nvme && path_entry != nullptr) {
    idle_.push_back({path_entry->written_key, fmt::format("its device is {}", name_of(placement))});
    paths.clear();
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
    problems_.add(*device,
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

// One process divides nothing, so that a stage is what it lets the file ask for.
void Resolver::explain_stage() {
  const auto place = [](Placement placement) {
    return placement == Placement::none  ? "in device memory"
           : placement == Placement::cpu ? "in host memory"
                                         : "on nvme, with host memory as their cache";
  };
  const auto found = recorded_.find(std::string(kStage));
  found->second.note =
      fmt::format("stage {} {}; parameters are {}, master weights and moments {}; {}", config_.zero_stage,
                  config_.batch.ranks == 1 ? "in one process: nothing is divided"
                  : config_.placement.parameters == Placement::none && config_.zero_stage < 3
                      ? fmt::format("on {} ranks: each has all parameters, and its share of the rest",
                                    config_.batch.ranks)
                      : fmt::format("on {} ranks: each has its share of everything", config_.batch.ranks),
                  place(config_.placement.parameters), place(config_.placement.states),
                  config_.zero_stage == 0 ? "the file may not offload anything"
                  : config_.zero_stage < 3
                      ? "stages 1 and 2 do the same here, and the file may offload the optimizer only"
                      : "the file may offload both");
}

// States in device memory are updated there whatever it says.
void Resolver::resolve_update_ratio() {
  config_.placement.processor_share = number(kRatio, 1);
  if (is_auto(kRatio) && config_.placement.states != Placement::none) {
    config_.placement.measures_sides = true;
    record(kRatio, json_quoted("auto"));
  }
  const ConfigEntry* ratio = given(kRatio);
  if (ratio != nullptr && config_.placement.processor_share < 1 &&
      config_.placement.states == Placement::none)
    idle_.push_back({ratio->written_key, "states are in device memory, and updated there"});
}

// DeepSpeed makes one sub-group per tensor of 0, and of less than a tensor.
void Resolver::resolve_chunk_bound() {
  const uint64_t sub_group = integer(kSubGroup, 1'000'000'000);
  if (sub_group == 0) {
    config_.max_chunk_elements = 0;
    idle_.push_back({given(kSubGroup)->written_key, "0: the plan decides the size of chunks"});
    return;
  }
  config_.max_chunk_elements = std::max<uint64_t>(1, sub_group / kTileElements) * kTileElements;
  if (sub_group >= kTileElements) return;
  config_.warnings.push_back(fmt::format("{} is {}; chunks have {} elements, which are the fewest",
                                         named(*given(kSubGroup)), sub_group, kTileElements));
}

void Resolver::resolve_zero() {
  config_.zero_stage = small(kStage, 0);
  PlacementConfig& placement = config_.placement;
  resolve_device("zero_optimization.offload_param", placement.parameters, placement.parameter_paths,
                 placement.pin_parameters);
  resolve_device("zero_optimization.offload_optimizer", placement.states, placement.state_paths,
                 placement.pin_states);
  check_stage();
  explain_stage();
  resolve_chunk_bound();
}

void Resolver::resolve_aio() {
  config_.aio.block_bytes = optional_integer("aio.block_size");
  if (config_.aio.block_bytes && *config_.aio.block_bytes % io::kDirectBytes != 0) {
    const ConfigEntry& block = *given("aio.block_size");
    problems_.add(block, fmt::format("{} is {}, which is not a multiple of {}", block.written_key,
                                     *config_.aio.block_bytes, io::kDirectBytes));
  }
  const auto narrow = [](std::optional<uint64_t> value) {
    return value ? std::optional<uint32_t>(static_cast<uint32_t>(*value)) : std::nullopt;
  };
  config_.aio.queue_depth = narrow(optional_integer("aio.queue_depth"));
  config_.aio.thread_count = narrow(optional_integer("aio.intra_op_parallelism"));
}

std::optional<DeviceChoice> device_choice_from_name(std::string_view name) {
  if (name == "simulated") return DeviceChoice::simulated;
  if (name == "cuda") return DeviceChoice::cuda;
  if (name == "auto") return DeviceChoice::automatic;
  return std::nullopt;
}

std::optional<GpuProducts> gpu_products_from_name(std::string_view name) {
  if (name == "auto") return GpuProducts::automatic;
  if (name == "cublaslt") return GpuProducts::cublas_lt;
  if (name == "own") return GpuProducts::own;
  return std::nullopt;
}

std::string_view name_of(ComputeType type) {
  switch (type) {
    case ComputeType::automatic:
      return "auto";
    case ComputeType::parameter_type:
      return "parameter_type";
    case ComputeType::fp32:
      return "fp32";
    case ComputeType::bf16:
      return "bf16";
    case ComputeType::bf16_amx:
      return "bf16_amx";
  }
  return "unknown";
}

std::optional<ComputeType> compute_type_from_name(std::string_view name) {
  for (const ComputeType type : {ComputeType::automatic, ComputeType::parameter_type, ComputeType::fp32,
                                 ComputeType::bf16, ComputeType::bf16_amx}) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

ProductType processor_products(const TrainConfig& config) {
  const ComputeType type = config.terrace.compute;
  if (type == ComputeType::bf16_amx) return ProductType::bf16_amx;
  const bool is_parameters = type == ComputeType::parameter_type && config.precision == DataType::bf16;
  return type == ComputeType::bf16 || is_parameters ? ProductType::bf16 : ProductType::fp32;
}

void Resolver::resolve_gpu() {
  TerraceConfig& own = config_.terrace;
  own.device = *device_choice_from_name(text("terrace.device", "simulated"));
  own.gpu_products = *gpu_products_from_name(text(kGpuProducts, "auto"));
  if (const ConfigEntry* entry = given(kGpuProducts);
      entry != nullptr && own.device == DeviceChoice::simulated)
    idle_.push_back({entry->written_key, "terrace.device is simulated"});
  resolve_compute();
}

void Resolver::resolve_compute() {
  TerraceConfig& own = config_.terrace;
  own.compute = *compute_type_from_name(text(kCompute, "auto"));
  const ConfigEntry* entry = given(kCompute);
  if (entry == nullptr) return;
  // The old name is of products on a GPU alone, where parameter_type is what auto is.
  const bool is_old = entry->written_key != kCompute;
  if (is_old && own.compute == ComputeType::parameter_type) {
    own.compute = ComputeType::automatic;
    record(kCompute, json_quoted("auto"));
    recorded_.find(std::string(kCompute))->second.note = fmt::format(
        "{} is parameter_type, which counts on a GPU alone, where auto is the same", entry->written_key);
  }
  const bool on_processor = own.device == DeviceChoice::simulated;
  if (is_old && on_processor) {
    idle_.push_back({entry->written_key, "terrace.device is simulated"});
  } else if (own.compute == ComputeType::parameter_type && config_.precision == DataType::fp16 &&
             on_processor) {
    idle_.push_back({entry->written_key, "the processor multiplies fp16 parameters in fp32"});
  }
}

// What a store is made of, whoever trains with it.
void Resolver::resolve_store() {
  TerraceConfig& own = config_.terrace;
  own.device_memory_bytes = optional_integer("terrace.device_memory");
  own.host_memory_bytes = optional_integer("terrace.host_memory");
  own.chunk_elements = optional_integer("terrace.chunk_elements");
  own.engine = io::engine_kind_from_name(text("terrace.engine", "auto"));
  own.strict = boolean("terrace.strict", own.strict);
  own.verify_checksums = boolean("terrace.verify_checksums", own.verify_checksums);
  own.compact_state = boolean(kCompact, own.compact_state);
  check_compact_state();
  resolve_update();
  own.thread_count = small("terrace.threads", own.thread_count);
  check_chunks();
}

void Resolver::resolve_terrace() {
  TerraceConfig& own = config_.terrace;
  resolve_store();
  own.policy = *policy_from_name(text("terrace.policy", "opt"));
  own.prefetch_uses = small("terrace.prefetch_depth", own.prefetch_uses);
  own.bind_threads = boolean("terrace.bind_threads", own.bind_threads);
  own.seed = integer("terrace.seed", own.seed);
  const ConfigEntry* depth = given("terrace.prefetch_depth");
  if (depth != nullptr && own.prefetch_uses > 0 && config_.max_prefetch_elements == uint64_t{0}) {
    problems_.add(*depth, fmt::format("{} is {}, but {} is 0, which turns prefetch off", depth->written_key,
                                      own.prefetch_uses, named(*given(kPrefetchBucket))));
  }
}

// A GPU alone reads files, and what it reads passes no processor that could compare it with its checksum.
void Resolver::resolve_file_reads() {
  FileReads& reads = config_.aio.file_reads;
  const bool automatic = is_auto(kGds);
  reads = boolean(kGds, false) ? FileReads::on : automatic ? FileReads::automatic : FileReads::off;
  if (automatic) record(kGds, json_quoted("auto"));
  if (reads == FileReads::off) return;
  const ConfigEntry& gds = *entries_.find(kGds);
  if (config_.placement.parameters != Placement::nvme) {
    reads = FileReads::off;
    idle_.push_back({gds.written_key, fmt::format("zero_optimization.offload_param.device is {}",
                                                  name_of(config_.placement.parameters))});
    return record(kGds, "false");
  }
  const auto stands_against = [&](std::string_view path, std::string_view value, std::string_view why) {
    const ConfigEntry* entry = given(path);
    const std::string key = entry != nullptr ? named(*entry) : fmt::format("{} (default)", path);
    if (!automatic) {
      problems_.add(gds, fmt::format("{} is true, but {} is {}: {}", gds.written_key, key, value, why));
      return;
    }
    reads = FileReads::off;
    record(kGds, "false");
    config_.warnings.push_back(fmt::format("{} is auto, and parameters go through host memory: {} is {}: {}",
                                           named(gds), key, value, why));
  };
  if (config_.terrace.device == DeviceChoice::simulated)
    return stands_against("terrace.device", "simulated", "only a GPU reads files by itself");
  if (config_.terrace.verify_checksums)
    stands_against("terrace.verify_checksums", "true", "what the GPU reads by itself is not compared");
}

// Only a bf16 parameter is the upper half of its master weight, and on the device the halves must meet.
void Resolver::check_compact_state() {
  if (!config_.terrace.compact_state) return;
  if (config_.precision == DataType::bf16) {
    const PlacementConfig& placement = config_.placement;
    if (placement.states != Placement::none || placement.parameters == Placement::none) return;
    const ConfigEntry& parameters = *given("zero_optimization.offload_param.device");
    problems_.add(
        *given(kCompact),
        fmt::format("{} is true, but {} is {}, and states are in device memory: half of each master "
                    "weight is elsewhere",
                    given(kCompact)->written_key, named(parameters), name_of(placement.parameters)));
    return;
  }
  const bool fp16 = config_.precision == DataType::fp16;
  const std::string_view path = fp16 ? "fp16.enabled" : "bf16.enabled";
  const ConfigEntry* precision = entries_.find(path);
  const ConfigEntry& compact = *given(kCompact);
  problems_.add(compact,
                fmt::format("{} is true, but {} is {}: {} parameters hold no half of their master weights",
                            compact.written_key,
                            precision != nullptr ? named(*precision) : fmt::format("{} (default)", path),
                            fp16 ? "true" : "false", name_of(config_.precision)));
}

void Resolver::resolve_update() {
  config_.terrace.update = update_mode_from_name(text(kUpdate, "auto"));
  const UpdateMode mode = config_.terrace.update.value_or(UpdateMode::after_backward);
  const bool divided = config_.placement.states != Placement::none && config_.placement.processor_share < 1;
  if (mode == UpdateMode::next_forward && divided) {
    problems_.add(
        *given(kUpdate),
        fmt::format("{} is next_forward, but {} is {}: what the device updates is updated after "
                    "backward or during it",
                    given(kUpdate)->written_key, named(*given(kRatio)), config_.placement.processor_share));
  }
  if (config_.placement.measures_sides) explain_update_ratio(mode);
  if (row_of(config_.optimizer.type).kind == OptimizerKind::muon) check_matrices(mode);
  if (mode == UpdateMode::after_backward || config_.placement.states != Placement::none) return;
  constexpr std::string_view device_key = "zero_optimization.offload_optimizer.device";
  const ConfigEntry* device = given(device_key);
  const ConfigEntry& update = *given(kUpdate);
  problems_.add(update,
                fmt::format("{} is {}, but {} is none: states in device memory are updated after backward",
                            update.written_key, name_of(mode),
                            device != nullptr ? named(*device) : fmt::format("{} (default)", device_key)));
}

// Muon's step of a matrix is made of its whole gradient, on the processor.
void Resolver::check_matrices(UpdateMode mode) {
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view why) {
    const ConfigEntry& entry = *given(key);
    problems_.add(entry,
                  fmt::format("{} is {}, but {} {}", entry.written_key, value, optimizer_named(), why));
  };
  if (mode != UpdateMode::after_backward)
    refuse(kUpdate, name_of(mode),
           "makes the step of a matrix of its whole gradient: it updates after_backward");
  const PlacementConfig& placement = config_.placement;
  if (given(kRatio) != nullptr && placement.processor_share < 1 && placement.states != Placement::none)
    refuse(kRatio, fmt::format("{}", placement.processor_share),
           "multiplies matrices on the processor, which updates all: it must be 1");
}

void Resolver::explain_update_ratio(UpdateMode mode) {
  recorded_.find(std::string(kRatio))->second.note =
      row_of(config_.optimizer.type).kind == OptimizerKind::muon
          ? "Muon multiplies matrices on the processor, which updates all"
      : mode == UpdateMode::next_forward
          ? "updates run in the next forward, in which the device has no part: the processor updates all"
      : config_.terrace.device == DeviceChoice::simulated
          ? "the simulated device computes with the processor's own threads: the processor updates all"
          : "on a GPU, measured rates of both sides decide before the run which one updates a chunk; on the "
            "simulated device the processor updates all";
}

void Resolver::check_chunks() {
  const TerraceConfig& own = config_.terrace;
  if (own.chunk_elements) {
    const ConfigEntry& chunk = *given("terrace.chunk_elements");
    if (*own.chunk_elements % kTileElements != 0) {
      problems_.add(chunk, fmt::format("{} is {}, which is not a multiple of {}", chunk.written_key,
                                       *own.chunk_elements, kTileElements));
    }
    const ConfigEntry* sub_group = given(kSubGroup);
    const uint64_t bound = config_.max_chunk_elements;
    if (sub_group != nullptr && bound > 0 && *own.chunk_elements > bound) {
      problems_.add(chunk, fmt::format("{} is {}, more than {}, {}", chunk.written_key, *own.chunk_elements,
                                       named(*sub_group), whole_number(sub_group->value)));
    }
  }
}

}  // namespace terrace
