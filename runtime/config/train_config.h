// TrainConfig: what a DeepSpeed JSON file and the command line ask for, resolved and checked.
// Nothing in it is silent: every value has an origin, every key without effect is in a warning, everything
// else that cannot be done is an Error. Resolving never looks at the machine: settle()
// (runtime/train/planning/settle.h) does, and budgets that were not given stay empty until a plan is made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/options/update_rates.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/runtime/config/lr_schedule.h>

namespace terrace {

struct BatchConfig {
  uint32_t micro_batch_size = 1;    // sequences
  uint32_t accumulation_steps = 1;  // micro-batches per update
  // All of them go through a layer before the next layer; only where there are several.
  bool layer_major = false;
  uint64_t train_batch_size() const { return uint64_t{micro_batch_size} * accumulation_steps; }
};

// As the configuration names them.
enum class OptimizerType : uint8_t { adam, adamw, adagrad, lion, sgd };
std::string_view name_of(OptimizerType type);
// Which settings it has.
bool has_betas(OptimizerType type);
bool has_epsilon(OptimizerType type);

// What an optimizer has no key for has no effect.
struct OptimizerConfig {
  OptimizerType type = OptimizerType::adamw;
  bool decoupled_weight_decay = true;  // adam, adamw; false: the decay is added to the gradient
  double learning_rate = 1e-3;
  double beta1 = 0.9;  // adam, adamw, lion
  double beta2 = 0.999;
  double epsilon = 1e-8;  // adam, adamw, adagrad
  double weight_decay = 0.0;
  bool bias_correction = true;  // adam, adamw
  double momentum = 0.0;        // sgd, and what follows
  double dampening = 0.0;
  bool nesterov = false;
  DataType moment_type = DataType::fp32;  // of what it keeps beside the master weights: fp32, or bf16
};

// The loss scale of fp16 training; without effect in other precisions.
struct Fp16Config {
  double loss_scale = 0;                // 0: dynamic, else this one always
  uint32_t initial_scale_power = 16;    // the dynamic scale starts at 2 to this power
  uint32_t loss_scale_window = 1000;    // updates without overflow until the scale is doubled
  uint32_t hysteresis = 2;              // overflows until the scale is halved
  bool consecutive_hysteresis = false;  // an update without overflow refills the hysteresis
  double min_loss_scale = 1;
};

// Where the kept inputs of layers wait for backward. cpu: in host memory. nvme: there, as far as host memory
// has no room for them. automatic: in device memory as far as that has room, then as the former where
// parameters or states are on nvme, else as cpu.
enum class ActivationOffload : uint8_t { none, cpu, nvme, automatic };
std::optional<ActivationOffload> activation_offload_from_name(std::string_view name);

// What is kept of a forward pass until backward.
struct ActivationConfig {
  bool checkpoint = true;             // keep layer inputs only and compute the rest again
  bool checkpoint_for_order = false;  // that, against what was asked for: micro-batches go layer by layer
  uint32_t checkpoint_count = 0;      // how many inputs are kept; 0: one per layer
  ActivationOffload offload = ActivationOffload::none;
};

// Adapters beside frozen weights.
struct LoraConfig {
  uint32_t rank = 8;
  double alpha = 16;
  std::vector<std::string> targets;  // glob patterns over module names; empty: what the model's family adapts
};

// Optimizer settings of the weights whose name matches one of the patterns; what is not given is the
// optimizer's.
struct GroupConfig {
  std::vector<std::string> match;  // glob patterns over weight names
  std::optional<double> lr, weight_decay, beta1, beta2, epsilon;
};

// One writer of scalars per step.
struct MonitorTarget {
  bool enabled = false;
  std::filesystem::path output_path;          // empty: the working folder
  std::string job_name = "DeepSpeedJobName";  // a folder in output_path
};

struct MonitorConfig {
  MonitorTarget tensorboard;
  MonitorTarget csv;
};

struct PlacementConfig {
  Placement parameters = Placement::none;
  Placement states = Placement::none;
  // Folders, none of them named twice in one list; used as one space. The two lists may overlap.
  std::vector<std::filesystem::path> parameter_paths;  // not empty when parameters are on nvme
  std::vector<std::filesystem::path> state_paths;      // not empty when states are on nvme
  // Bytes per second of folders above, reads and writes mixed, where they were measured
  // (runtime/config/tuning/tuning.h).
  std::map<std::filesystem::path, double> measured_rates;
  bool pin_parameters = true;  // page-lock the host memory of this role where the system allows it
  bool pin_states = true;
  // Of trained elements whose states are on cpu or nvme: what the processor updates, and not the device.
  double processor_share = 1;
  // The ratio is "auto": rates that have been measured decide instead, chunk by chunk, where settle()
  // (runtime/train/planning/settle.h) has found that the device may take part.
  bool measures_sides = false;
  std::string sides_origin;  // what settle() has found of that, in words
  std::optional<UpdateRates> update_rates;
};

// Whether the device reads parameters on nvme by itself, past host memory. automatic: where it can, which
// settle() (runtime/train/planning/settle.h) finds out.
enum class FileReads : uint8_t { off, on, automatic };

// The "aio" section; what was not given is the engine's own choice.
struct AioConfig {
  std::optional<uint64_t> block_bytes;    // largest single request, a multiple of 4096
  std::optional<uint32_t> queue_depth;    // requests in flight
  std::optional<uint32_t> thread_count;   // threads of the "threads" engine, and of the device's own reads
  FileReads file_reads = FileReads::off;  // use_gds; on and automatic: parameters on nvme, without checksums
};

// The keys of our own, under "terrace".
// Where operations compute. automatic: on a GPU where there is one that this build can use.
enum class DeviceChoice : uint8_t { simulated, cuda, automatic };
std::optional<DeviceChoice> device_choice_from_name(std::string_view name);

// Who multiplies matrices on a GPU. automatic: cuBLASLt where one is installed that its driver can run.
enum class GpuProducts : uint8_t { automatic, cublas_lt, own };
std::optional<GpuProducts> gpu_products_from_name(std::string_view name);

// In which type matrices are multiplied on a GPU: that of the parameters, to which what meets them is
// rounded, or fp32, to which they are widened.
enum class GpuCompute : uint8_t { parameter_type, fp32 };
std::optional<GpuCompute> gpu_compute_from_name(std::string_view name);

struct TerraceConfig {
  DeviceChoice device = DeviceChoice::simulated;
  GpuProducts gpu_products = GpuProducts::automatic;
  GpuCompute gpu_compute = GpuCompute::parameter_type;
  std::optional<uint64_t> device_memory_bytes;
  std::optional<uint64_t> host_memory_bytes;
  std::optional<uint64_t> chunk_elements;  // a multiple of kTileElements
  PolicyKind policy = PolicyKind::opt;
  std::optional<io::EngineKind> engine;  // nullopt: the best that works here
  bool io_uring_sqpoll = false;          // of io_uring: see io::EngineOptions
  bool io_uring_iopoll = false;
  uint32_t prefetch_uses = 16;  // 0 fetches on demand only
  bool strict = false;
  bool verify_checksums = true;
  // bf16 parameters are the upper halves of their master weights, and records keep the lower ones only.
  bool compact_state = false;
  std::optional<UpdateMode> update;  // nullopt: what the first steps show to be the fastest
  uint32_t thread_count = 0;         // compute threads; 0: one per available core
  bool bind_threads = true;          // to processors of their own, where that helps
  uint64_t seed = 42;
  // Of states on nvme only.
  bool memory_pressure = true;          // give host memory back before the kernel kills the run
  bool device_token = true;             // turns on the drive with other processes
  bool durable = true;                  // false: in place, without commits
  uint64_t commit_every_steps = 0;      // 0: steps do not decide
  uint64_t commit_every_seconds = 300;  // 0: time does not decide
  uint32_t retained_checkpoints = 0;    // commits that are kept beside the last one
};

// One line of --print-config.
struct ResolvedValue {
  std::string key;    // "zero_optimization.offload_param.device"
  std::string value;  // a JSON literal: "nvme" with its quotes, 16, 1e-08, true, null
  // "ds.json:12:5", "auto (ds.json:12:5)", "default", "mapped from cpu_offload (...)", "--lr"; behind it, or
  // instead of "default", what settle() found: "from the tuning in FILE", "measured on this machine".
  std::string origin;
  std::string note;  // what it means in this configuration, where that needs words; else empty
};

struct TrainConfig {
  BatchConfig batch;
  OptimizerConfig optimizer;
  // Its maximum is the optimizer's learning rate unless the scheduler says otherwise.
  LrScheduleOptions schedule;
  DataType precision = DataType::fp32;
  Fp16Config fp16;
  std::optional<DataType> grad_accum_type;  // nullopt: fp32 when micro-batches accumulate
  ActivationConfig activations;
  std::optional<LoraConfig> lora;
  std::vector<std::string> frozen;            // glob patterns over weight names
  std::vector<GroupConfig> parameter_groups;  // the first match wins
  double gradient_clipping = 1.0;             // largest global norm; 0: no clipping
  uint32_t zero_stage = 0;
  PlacementConfig placement;
  AioConfig aio;
  TerraceConfig terrace;
  uint64_t max_chunk_elements = 0;  // from sub_group_size, a multiple of kTileElements; 0: no bound
  std::optional<uint64_t> max_prefetch_elements;  // from stage3_prefetch_bucket_size; 0: no prefetch
  std::optional<uint64_t> steps_per_print;        // nullopt: not asked for
  MonitorConfig monitor;
  bool wall_clock_breakdown = false;          // times of forward, backward and update at every printed step
  bool gather_16bit_weights_on_save = false;  // a save also exports the weights in 16 bits as safetensors

  std::vector<ResolvedValue> resolved;  // every key that has an effect, in the order of the schema
  std::vector<std::string> warnings;    // for the log, of one line or more
};

// A value from somewhere else than the file, for example from the command line. It takes the place of the
// file's.
struct ConfigOverride {
  std::string key;     // "terrace.device_memory", "optimizer.params.lr"
  std::string value;   // as typed: "256MiB", "3e-4", "true", "[0.9, 0.95]"
  std::string origin;  // "--device-memory"
};

// `name` stands for the text in messages: "ds.json". Throws Error(config) with one line per problem:
//   ds.json:14:7: unknown key "stage3_max_live_paramters" in zero_optimization; did you mean "..."?
TrainConfig parse_train_config(std::string_view text, std::string_view name,
                               std::span<const ConfigOverride> overrides = {});
TrainConfig load_train_config(const std::filesystem::path& path,
                              std::span<const ConfigOverride> overrides = {});
// Without a file.
TrainConfig default_train_config(std::span<const ConfigOverride> overrides = {});

// The resolved values as aligned columns (key, value, origin) with their notes below, and as a JSON array of
// objects.
std::string config_table(const TrainConfig& config);
std::string config_json(const TrainConfig& config);

// What one key means, what it is in this configuration and where that comes from, in a few lines. `key` is a
// path, or the last word of one. Throws Error(config) when there is no such key.
std::string config_explanation(const TrainConfig& config, std::string_view key);

// docs/config.md: every known key with its type, default and effect.
std::string config_reference_markdown();

}  // namespace terrace
