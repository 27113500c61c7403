// TrainConfig: the settings that a DeepSpeed JSON file and the command line ask for, resolved and checked.
// Nothing in it is silent: every value has an origin, every key without effect is in a warning, and
// everything else that cannot be done is an Error. Resolving never looks at the machine: settle()
// (reference/planning/settle.h) does. Budgets that were not given stay empty until a plan is made.
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
#include <terrace/offload/options/step_rounds.h>
#include <terrace/offload/options/update_rates.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/optimizer_cpu/weight_codes.h>
#include <terrace/runtime/config/lr_schedule.h>

namespace terrace {

enum class RankExchange : uint8_t;  // of OffloadOptions

struct BatchConfig {
  uint32_t micro_batch_size = 1;  // sequences
  uint32_t micro_batches = 1;     // per update, over all ranks
  uint32_t ranks = 1;             // that train together
  uint32_t hosts = 1;             // of the ranks, where these are numbered host by host, as many on each
  // Micro-batches of a gradient group (StepRounds). Without a value: as in the run that is gone on from, or
  // new_gradient_group().
  std::optional<uint32_t> gradient_group = std::nullopt;
  uint32_t gradient_bits = 0;  // OffloadOptions::gradient_bits
  // All micro-batches go through a layer before the next layer; true only if a step has several.
  bool layer_major = false;
  uint64_t train_batch_size() const { return uint64_t{micro_batch_size} * micro_batches; }
  // The micro-batches that a rank goes through in a step.
  StepRounds rounds() const {
    return {micro_batches, ranks, gradient_group.value_or(1), hosts, gradient_bits};
  }
  // Of a run that begins: what the ranks of a host make in a round, where there are several hosts, so that
  // one sum crosses from each.
  uint32_t new_gradient_group() const { return hosts > 1 ? ranks / hosts : 1; }
};

// A setting that the optimizer has no key for has no effect.
struct OptimizerConfig {
  OptimizerType type = OptimizerType::adamw;
  bool decoupled_weight_decay = true;  // adam, adamw; false: the decay is added to the gradient
  double learning_rate = 1e-3;
  double beta1 = 0.9;  // adam, adamw, lion
  double beta2 = 0.999;
  double epsilon = 1e-8;  // adam, adamw, adagrad
  double weight_decay = 0.0;
  bool bias_correction = true;  // adam, adamw
  double momentum = 0.0;        // sgd and muon, as is nesterov
  double dampening = 0.0;       // sgd
  bool nesterov = false;
  // Muon is for matrices. Beside it AdamW updates the rest, by the learning rate, the betas and the epsilon
  // above; the weight decay is that of both.
  double matrix_learning_rate = 0.02;
  MuonSettings muon = {};
  MomentType moment_type = MomentType::fp32;  // of the state beside the master weights
};

// The loss scale of fp16 training. It has no effect in other precisions.
struct Fp16Config {
  double loss_scale = 0;                // 0: dynamic, else a constant
  uint32_t initial_scale_power = 16;    // the dynamic scale starts at 2 to this power
  uint32_t loss_scale_window = 1000;    // updates without overflow until the scale is doubled
  uint32_t hysteresis = 2;              // overflows until the scale is halved
  bool consecutive_hysteresis = false;  // an update without overflow refills the hysteresis
  double min_loss_scale = 1;
};

// The place where the kept inputs of layers wait for backward. cpu is host memory. nvme is host memory first
// and drives for the rest. automatic is device memory first; the rest goes as with nvme if parameters or
// states are on nvme, else as with cpu.
enum class ActivationOffload : uint8_t { none, cpu, nvme, automatic };
std::optional<ActivationOffload> activation_offload_from_name(std::string_view name);

// The activations that a forward pass keeps until backward.
struct ActivationConfig {
  bool checkpoint = true;         // keep layer inputs only and compute the rest again
  uint32_t checkpoint_count = 0;  // how many inputs are kept; 0: one per layer
  ActivationOffload offload = ActivationOffload::none;
};

// The adapters beside frozen weights.
struct LoraConfig {
  uint32_t rank = 8;
  double alpha = 16;
  std::vector<std::string> targets;  // glob patterns over module names; empty: the family's own choice
};

// Optimizer settings of the weights whose name matches one of the patterns. The optimizer's own value stands
// for a setting that is not given.
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
  // Each list holds different folders that are used as one space. The two lists may overlap.
  std::vector<std::filesystem::path> parameter_paths;  // not empty when parameters are on nvme
  std::vector<std::filesystem::path> state_paths;      // not empty when states are on nvme
  // Not empty: the sub-folder of each path that this rank of several uses (tier_paths.h).
  std::string tier_name;
  // Where ranks of this run, or of earlier ones, may have left their part of a state, beside the paths above
  // (take_paths_of() in tier_paths.h).
  std::vector<std::filesystem::path> other_paths;
  // Measured bytes per second of these folders, reads and writes mixed (runtime/config/tuning/tuning.h).
  std::map<std::filesystem::path, double> measured_rates;
  bool pin_parameters = true;  // page-lock the host memory of this role where the system allows it
  bool pin_states = true;
  // The share of trained elements with states on cpu or nvme that the processor updates; the device updates
  // the others.
  double processor_share = 1;
  // True if the ratio is "auto". Measured rates then decide chunk by chunk if settle()
  // (reference/planning/settle.h) finds that the device may take part.
  bool measures_sides = false;
  std::string sides_origin;  // the text of what settle() found about the sides
  std::optional<UpdateRates> update_rates;
};

// The device's own reads of parameters on nvme, past host memory. automatic: on if settle()
// (reference/planning/settle.h) finds that the device can.
enum class FileReads : uint8_t { off, on, automatic };

// The "aio" section. The engine chooses the values that are not given.
struct AioConfig {
  std::optional<uint64_t> block_bytes;    // largest single request, a multiple of 4096
  std::optional<uint32_t> queue_depth;    // requests in flight
  std::optional<uint32_t> thread_count;   // threads of the "threads" engine, and of the device's own reads
  FileReads file_reads = FileReads::off;  // use_gds; on and automatic: parameters on nvme, without checksums
};

// The place where operations compute. automatic: a GPU that this build can use, if there is one.
enum class DeviceChoice : uint8_t { simulated, cuda, automatic };
std::optional<DeviceChoice> device_choice_from_name(std::string_view name);

// The implementation of matrix products on a GPU. automatic: cuBLASLt if one is installed that the driver can
// run.
enum class GpuProducts : uint8_t { automatic, cublas_lt, own };
std::optional<GpuProducts> gpu_products_from_name(std::string_view name);

// The type in which matrices are multiplied, with sums in fp32. fp32: parameters of 16 bits are widened. The
// others round activations and gradients for a product, to bf16 or to the parameters' type, but on the
// processor, which multiplies fp16 in fp32. bf16_amx: bf16 with the sums of AMX, on the processor alone.
// automatic: parameter_type on a GPU, fp32 on the processor.
enum class ComputeType : uint8_t { automatic, parameter_type, fp32, bf16, bf16_amx };
std::string_view name_of(ComputeType type);
std::optional<ComputeType> compute_type_from_name(std::string_view name);

// How the ranks of a run reach each other. automatic: by MPI if its launcher has started them, else by
// sockets. host: by sockets and memory of the one host that they share. nccl: as automatic, and parameters
// that they gather and gradients go from GPU to GPU.
enum class CommunicatorChoice : uint8_t { automatic, host, mpi, nccl };
std::optional<CommunicatorChoice> communicator_choice_from_name(std::string_view name);

// Which of the nvme paths of its host a rank uses. automatic: its own if there are a multiple of the ranks of
// the host, else all.
enum class NvmeShare : uint8_t { automatic, all, own };
std::optional<NvmeShare> nvme_share_from_name(std::string_view name);

// nullopt for "auto".
std::optional<RankExchange> rank_exchange_from_name(std::string_view name);

struct TerraceConfig {
  DeviceChoice device = DeviceChoice::simulated;
  GpuProducts gpu_products = GpuProducts::automatic;
  ComputeType compute = ComputeType::automatic;
  std::optional<uint64_t> device_memory_bytes;
  std::optional<uint64_t> host_memory_bytes;
  std::optional<uint64_t> chunk_elements;  // a multiple of kTileElements
  PolicyKind policy = PolicyKind::opt;
  std::optional<io::EngineKind> engine;  // nullopt: the best that works here
  uint32_t prefetch_uses = 16;           // 0 fetches on demand only
  bool strict = false;
  bool verify_checksums = true;
  // bf16 parameters are the upper halves of their master weights, and records keep only the lower ones.
  bool compact_state = false;
  std::optional<UpdateMode> update;  // nullopt: the fastest in the first steps
  uint32_t thread_count = 0;         // compute threads; 0: one per available core
  bool bind_threads = true;          // bind threads to processors of their own, where that helps
  uint64_t seed = 42;
  CommunicatorChoice communicator = CommunicatorChoice::automatic;
  NvmeShare nvme_share = NvmeShare::automatic;
  std::optional<RankExchange> rank_exchange;  // nullopt: auto, which is symmetric
  uint64_t rank_timeout_seconds = 60;         // for the ranks of a run to come together
  uint64_t stall_warning_seconds = 60;        // age of a wait that is warned of; 0: never
  uint64_t stall_abort_seconds = 0;           // age of a wait that ends the run; 0: never
  uint64_t compare_ranks_every_steps = 0;     // 0: never
  // The members below apply to states on nvme only.
  bool memory_pressure = true;          // give host memory back before the kernel kills the run
  bool durable = true;                  // false: updates in place, without commits
  uint64_t commit_every_steps = 0;      // 0: the number of steps does not matter
  uint64_t commit_every_seconds = 300;  // 0: the time does not matter
  uint32_t retained_checkpoints = 0;    // commits kept beside the last one
};

// One line of --print-config.
struct ResolvedValue {
  std::string key;    // "zero_optimization.offload_param.device"
  std::string value;  // a JSON literal: "nvme" with its quotes, 16, 1e-08, true, null
  // The place of the value: "ds.json:12:5", "auto (ds.json:12:5)", "default", "mapped from cpu_offload
  // (...)", "--lr". A value that settle() changed adds, or has instead of "default", "from the tuning in
  // FILE" or "measured on this machine".
  std::string origin;
  std::string note;  // its meaning in this configuration, if that needs words; else empty
};

struct TrainConfig {
  BatchConfig batch;
  uint32_t ranks_on_host = 1;  // which share the memory and the processors of this machine
  OptimizerConfig optimizer;
  // The schedule's maximum is the optimizer's learning rate unless the scheduler says otherwise.
  LrScheduleOptions schedule;
  DataType precision = DataType::fp32;
  Fp16Config fp16;
  std::optional<DataType> grad_accum_type;  // nullopt: fp32 when micro-batches accumulate
  ActivationConfig activations;
  std::optional<LoraConfig> lora;
  WeightCode quantize_base = WeightCode::none;  // of the frozen weights of linear layers, beside adapters
  std::vector<std::string> frozen;              // glob patterns over weight names
  std::vector<GroupConfig> parameter_groups;    // the first match wins
  double gradient_clipping = 1.0;               // largest global norm; 0: no clipping
  uint32_t zero_stage = 0;
  PlacementConfig placement;
  AioConfig aio;
  TerraceConfig terrace;
  uint64_t max_chunk_elements = 0;  // from sub_group_size, a multiple of kTileElements; 0: no bound
  std::optional<uint64_t> max_prefetch_elements;  // from stage3_prefetch_bucket_size; 0: no prefetch
  std::optional<uint64_t> steps_per_print;        // nullopt: not asked for
  MonitorConfig monitor;
  uint32_t parameter_bits = 0;                // OffloadOptions::parameter_bits
  uint32_t sub_group_ranks = 0;               // over which parameters are cut and held once; 0: all
  bool keeps_gathers_first = false;           // OffloadOptions::keeps_gathers_first
  bool ranks_overlap = true;                  // false: gathers and exchanges are waited for where they begin
  bool logs_lanes = false;                    // the log of steps has what each lane of ranks has moved
  bool wall_clock_breakdown = false;          // times of forward, backward and update at every printed step
  bool gather_16bit_weights_on_save = false;  // a save also exports the weights in 16 bits as safetensors

  std::vector<ResolvedValue> resolved;  // every key that has an effect, in the order of the schema
  std::vector<std::string> warnings;    // for the log, one line or more each
};

// Returns the type in which the processor multiplies matrices.
ProductType processor_products(const TrainConfig& config);

// A value from another place than the file, for example the command line. It replaces the file's value.
struct ConfigOverride {
  std::string key;       // "terrace.device_memory", "optimizer.params.lr"
  std::string value;     // as typed: "256MiB", "3e-4", "true", "[0.9, 0.95]"
  std::string origin;    // "--device-memory"
  bool is_fact = false;  // nobody's wish: where something else is given, that is said to have no effect
};

// `name` stands for the text in messages: "ds.json". Throws Error(config) with one line per problem:
//   ds.json:14:7: unknown key "stage3_max_live_paramters" in zero_optimization; did you mean "..."?
TrainConfig parse_train_config(std::string_view text, std::string_view name,
                               std::span<const ConfigOverride> overrides = {});
TrainConfig load_train_config(const std::filesystem::path& path,
                              std::span<const ConfigOverride> overrides = {});
// Returns the configuration without a file.
TrainConfig default_train_config(std::span<const ConfigOverride> overrides = {});

// Return the resolved values as aligned columns (key, value, origin) with their notes below, and as a JSON
// array of objects.
std::string config_table(const TrainConfig& config);
std::string config_json(const TrainConfig& config);

// Explains one key in a few lines: its meaning, its value in this configuration and where that comes from.
// `key` is a path, or the last word of one. Throws Error(config) if there is no such key.
std::string config_explanation(const TrainConfig& config, std::string_view key);

}  // namespace terrace
