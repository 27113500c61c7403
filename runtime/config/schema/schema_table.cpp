// The rows of the schema. Defaults are DeepSpeed's (0.19) unless the note says otherwise.
#include <array>
#include <utility>

#include <terrace/aio/engine_limits.h>
#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/runtime/config/schema/internal/replacements.h>
#include <terrace/runtime/config/schema/schema.h>

namespace terrace {
namespace {

using enum ValueType;
using enum KeyEffect;

constexpr double kMaxCount = std::numeric_limits<uint32_t>::max();
constexpr double kMaxInteger = 9223372036854775807.0;
constexpr double kMaxChunk = 0x1p40;  // more than any model has
constexpr double kMaxFp32 = std::numeric_limits<float>::max();
constexpr double kBelowOne = 1.0 - 0x1p-53;

constexpr std::string_view kZero = "zero_optimization";
constexpr std::string_view kParam = "zero_optimization.offload_param";
constexpr std::string_view kState = "zero_optimization.offload_optimizer";
constexpr std::string_view kZenflow = "zero_optimization.zenflow";

constexpr std::string_view kChunkMoves = "A chunk is the unit of every transfer, among ranks too.";
constexpr std::string_view kOwnerSums =
    "Gradients travel as they are, and the rank that owns them adds them up in fp32, in the order of "
    "micro-batches.";
constexpr std::string_view kScaledLoss = "The loss is scaled by the number of micro-batches.";
constexpr std::string_view kOneModel = "No model is divided among ranks.";
constexpr std::string_view kDegree =
    "No model is divided among ranks: every degree has to be 1 or 0, and nothing else here has an effect.";
constexpr std::string_view kFirstSaves =
    "The first rank writes checkpoints, which do not depend on the number of ranks.";
constexpr std::string_view kLaneLog = "Every step has one object, with all lanes.";
constexpr std::string_view kNoGathering =
    "Modules are not hooked: the model names what each operation needs.";
constexpr std::string_view kBudgetRules =
    "Residency follows terrace.device_memory and the recorded schedule.";
constexpr std::string_view kLiveBytes =
    "terrace.device_memory bounds device memory: 2 bytes for each bf16 or fp16 parameter that is to be there "
    "at "
    "a time, 4 in fp32, and the activations.";
constexpr std::string_view kPersistentBytes =
    "What is used next stays as far as terrace.device_memory has room: 2 bytes more for each bf16 or fp16 "
    "parameter that is to stay, 4 in fp32.";
constexpr std::string_view kService =
    "Scalars of the program go to tensorboard, to csv_monitor and to the log of steps.";
constexpr std::string_view kUnread = "The program does not read it.";
constexpr std::string_view kOutputPath = "The folder that has a folder per job; empty: the working folder.";
constexpr std::string_view kJobName = "A folder in output_path.";
constexpr std::string_view kMonitorSection = "Some files have it here; it belongs to the top level.";
constexpr std::string_view kWriter = "Terrace writes its own checkpoints.";
constexpr std::string_view kTimers = "Timers never synchronise the device.";
constexpr std::string_view kNoZenflow = "ZenFlow changes which updates are applied; it is not supported.";
constexpr std::string_view kOtherOptimizer = "Belongs to an optimizer that is not supported.";
constexpr std::string_view kDeepCompile = "Only used by DeepCompile.";
constexpr std::string_view kNoCompiler = "There is no graph compiler: Terrace's own schedule does this work.";
constexpr std::string_view kCompression = "Compression is not supported.";
constexpr std::string_view kPeftName = "The name that PEFT has for it.";
constexpr std::string_view kSwitchedOff = "enabled: false";
constexpr std::string_view kNoStage3 = "The same key without its stage3_ prefix, as some files have it.";
constexpr std::string_view kOldAio = "An older name of intra_op_parallelism, which DeepSpeed ignores today.";

// "AdamW|Adam|...", which the table of optimizers has.
constexpr auto kOptimizerKeysText = [] {
  std::array<char, 128> text = {};
  size_t end = 0;
  for (const OptimizerRow& row : kOptimizers) {
    if (end > 0) text[end++] = '|';
    for (const char c : row.key) text[end++] = c;
  }
  return std::pair(text, end);
}();
constexpr std::string_view kOptimizerKeys(kOptimizerKeysText.first.data(), kOptimizerKeysText.second);

constexpr KeyLimits one_or_more = {.minimum = 1, .maximum = kMaxInteger};
constexpr KeyLimits counted = {.minimum = 0, .maximum = kMaxCount};
constexpr KeyLimits at_least_one = {.minimum = 1, .maximum = kMaxCount};
constexpr KeyLimits elements = {.minimum = 0, .maximum = kMaxInteger};
constexpr KeyLimits only_false = {.allowed = "false"};
constexpr KeyLimits undivided = {.divides_model = true};
constexpr KeyLimits warned_of = {.warns_if_enabled = true};
constexpr KeyLimits when_off = {.allowed = kSwitchedOff};

constexpr KeyLimits same_as(std::string_view path) {
  return {.maximum = kMaxInteger, .stands_for = path};
}
constexpr KeyLimits old_name_of(std::string_view path) {
  return {.maximum = kMaxInteger, .stands_for = path, .has_new_name = true};
}
constexpr KeyLimits between(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum};
}
constexpr KeyLimits old_threads = {
    .minimum = 1, .maximum = io::kMostEngineThreads, .stands_for = "aio.intra_op_parallelism"};
constexpr KeyLimits one_of(std::string_view allowed) {
  return {.allowed = allowed};
}

// clang-format off
constexpr auto kRows = std::to_array<SchemaKey>({
    // Batch and reporting.
    {"", "train_batch_size", integer, "", honoured, "Sequences per update = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks. Any one or two of the three give the rest; this one and the size of micro-batches fix the numbers of a training on any number of ranks.", at_least_one},
    {"", "train_micro_batch_size_per_gpu", integer, "1", honoured, "Sequences computed at a time.", at_least_one},
    {"", "gradient_accumulation_steps", integer, "1", honoured, "Micro-batches per update on every rank; 16384 at most over all of them.", at_least_one},
    {"", "gradient_clipping", number, "1.0", honoured, "Largest global gradient norm; 0 turns clipping off."},
    {"", "steps_per_print", integer, "", honoured, "A progress line every so many steps.", {.minimum = 1, .maximum = kMaxInteger}},
    {"", "wall_clock_breakdown", boolean, "false", honoured, "With every progress line, the milliseconds of forward, backward and update, which go to the monitors as well, and the parts of the step (docs/step_time.md)."},
    {"", "cuda_visible_devices", any, "", without_effect, "The environment variable CUDA_VISIBLE_DEVICES decides."},
    {"", "comms_config", open_section, "", without_effect, kChunkMoves},
    {"", "tag", any, "", without_effect, "DeepSpeed does not read it either."},
    {"", "memory_breakdown", boolean, "false", without_effect, "Every step's report has the bytes of each tier."},
    {"", "dump_state", boolean, "false", without_effect, "--print-config shows every resolved value."},
    {"", "disable_python_gc", boolean, "false", without_effect, "There is no Python."},
    {"", "log_level", text, "info", without_effect, "The program says what matters, once."},
    {"", "ddp_bf16", any, "", without_effect, kOwnerSums},
    {"", "dataloader_drop_last", boolean, "false", without_effect, "Every batch is whole, always."},
    {"", "prescale_gradients", boolean, "false", without_effect, kScaledLoss},
    {"", "gradient_predivide_factor", number, "1.0", without_effect, kScaledLoss},
    {"", "gradient_allreduce_op", choice, "mean", refused, "The gradient is that of the mean over all micro-batches.", one_of("mean|avg")},
    {"", "disable_allgather", boolean, "false", without_effect, kChunkMoves},
    {"", "communication_data_type", choice, "", honoured, "Gradients of several ranks travel in their own type, and the rank that owns them adds them up in fp32, in the order of micro-batches: that type and fp32 are accepted, and others, which would lose digits, are refused.", one_of("fp16|bf16|fp32|none")},
    {"", "seq_parallel_communication_data_type", choice, "fp32", without_effect, kOneModel, one_of("fp16|bf16|fp32")},
    {"", "seq_parallel_comm_data_type", choice, "fp32", without_effect, kOneModel, one_of("fp16|bf16|fp32")},
    {"", "sequence_parallel_size", integer, "1", refused, "No sequence is divided among ranks.", one_of("1")},
    {"", "expert_parallel", open_section, "", without_effect, kDegree, undivided},
    {"", "use_data_before_expert_parallelism", boolean, "false", without_effect, kOneModel},
    {"", "managed_gradient_accumulation", boolean, "true", refused, "Terrace always counts the micro-batches itself.", one_of("true")},
    {"", "zero_allow_untested_optimizer", boolean, "false", without_effect, "The optimizer is always Terrace's own."},
    {"", "zero_force_ds_cpu_optimizer", boolean, "true", without_effect, "The optimizer is always Terrace's own."},
    {"", "sparse_gradients", boolean, "false", without_effect, "Gradients are dense."},
    {"", "graph_harvesting", boolean, "false", without_effect, "There are no CUDA graphs."},
    {"", "vocabulary_size", integer, "", without_effect, "The model and its data decide.", counted},

    // Optimizer and schedule.
    {"", "optimizer", section, "", honoured, "Without it: AdamW with its defaults; where the file holds \"auto\", a trainer would bring the optimizer, and lr is that of Hugging Face's, 5e-5, with the scheduler linear."},
    {"optimizer", "type", choice, "AdamW", honoured, "As in DeepSpeed, Adam decays like AdamW unless adam_w_mode is false. A key of another optimizer is an error. The refusal of an optimizer that is not here names one that is.", {.allowed = kOptimizerKeys, .instead = kOtherOptimizers}},
    {"optimizer", "params", section, "", honoured, "The settings of the optimizer."},
    {"optimizer", "legacy_fusion", boolean, "false", without_effect, "There is one kernel."},
    {"optimizer.params", "lr", number, "0.001", honoured, "Learning rate. Without it: 0.001, 0.01 with Adagrad, and with Muon what muon_lr and adam_lr say. \"auto\" is 5e-5, as Hugging Face's trainer has it."},
    {"optimizer.params", "betas", number_list, "[0.9, 0.999]", honoured, "Adam, AdamW: the two moments' decay rates; Lion: those of its direction and of its moment; Muon: those of AdamW, which updates what is no matrix. Without it: [0.9, 0.99] with Lion, [0.9, 0.95] with Muon. \"auto\" is [0.9, 0.999], as Hugging Face's trainer has it.", between(0, kBelowOne)},
    {"optimizer.params", "eps", number, "1e-08", honoured, "Adam, AdamW, Adagrad: added to the denominator; Muon: that of AdamW beside it. Without it: 1e-10 with Adagrad and Muon. \"auto\" is 1e-8, as Hugging Face's trainer has it."},
    {"optimizer.params", "weight_decay", number, "0", honoured, "Weight decay: AdamW, Lion and Muon shrink the weights by it, Adagrad and SGD add it to the gradient."},
    {"optimizer.params", "bias_correction", boolean, "true", honoured, "Adam, AdamW: corrects the moments' bias towards zero."},
    {"optimizer.params", "adam_w_mode", boolean, "true", honoured, "Adam, AdamW: false, with type Adam: the decay is added to the gradient."},
    {"optimizer.params", "momentum", number, "0", honoured, "SGD: how much of the last direction is kept; 0 needs no moment at all. Muon: how much of the mean of gradients is; without it 0.95.", between(0, kBelowOne)},
    {"optimizer.params", "dampening", number, "0", honoured, "SGD: how much of the gradient does not enter the momentum.", between(0, 1)},
    {"optimizer.params", "nesterov", boolean, "false", honoured, "SGD: Nesterov's momentum; it needs momentum, and no dampening. Muon: without it true."},
    {"optimizer.params", "muon_lr", number, "0.02", honoured, "Muon: learning rate of matrices. Without it: lr, or 0.02. \"auto\" is as of lr."},
    {"optimizer.params", "adam_lr", number, "0.0003", honoured, "Muon: learning rate of AdamW, which updates embeddings, the output head, biases and norms. Without it: lr, or 0.0003. \"auto\" is as of lr."},
    {"optimizer.params", "adjust_lr_fn", choice, "original", honoured, "Muon: by what a matrix's learning rate is multiplied: the root of rows over columns, 1 at least (original), or 0.2 times the root of the larger of both, which makes steps as large as AdamW's (match_rms_adamw).", one_of("original|match_rms_adamw")},
    {"optimizer.params", "ns_steps", integer, "5", honoured, "Muon: iterations of Newton and Schulz; 0 leaves the direction divided by its norm.", between(0, kMostMuonIterations)},
    {"optimizer.params", "ns_method", any, "", without_effect, "There is one way to multiply the matrices of Muon, with sums in fp32."},
    {"optimizer.params", "torch_adam", boolean, "false", without_effect, "There is one implementation; it computes what torch's does."},
    {"optimizer.params", "fused", boolean, "false", without_effect, "There is one implementation."},
    {"optimizer.params", "adamw_mode", boolean, "", mapped, "The name in DeepSpeed's classes.", same_as("optimizer.params.adam_w_mode")},
    {"optimizer.params", "set_grad_none", boolean, "true", without_effect, "Gradients are written anew in every step."},
    {"optimizer.params", "fp32_optimizer_states", boolean, "true", honoured, "false: moments have the precision of the parameters, as far as that is bf16 or fp32; master weights are fp32 always. The same as bf16.bf16_optimizer_states."},
    {"optimizer.params", "amsgrad", boolean, "false", refused, "AMSGrad is not supported, as in DeepSpeed.", only_false},
    {"optimizer.params", "max_grad_norm", number, "", refused, "Set gradient_clipping instead, as DeepSpeed asks."},
    {"optimizer.params", "freeze_step", integer, "", refused, kOtherOptimizer},
    {"optimizer.params", "max_coeff", number, "", refused, kOtherOptimizer},
    {"optimizer.params", "min_coeff", number, "", refused, kOtherOptimizer},
    {"", "scheduler", section, "", honoured, "Without it the learning rate is constant, or linear where the file holds \"auto\" and no optimizer."},
    {"scheduler", "type", choice, "", honoured, "linear is Hugging Face's: from lr to 0 at the end, without a warm-up; the others have DeepSpeed's arithmetic. A key of another scheduler is an error. The refusal of a scheduler of torch names the nearest one here.", {.allowed = "linear|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest", .instead = kOtherSchedulers}},
    {"scheduler", "params", section, "", honoured, "The settings of the scheduler."},
    {"scheduler.params", "warmup_min_lr", rates, "0", honoured, "WarmupLR, WarmupDecayLR: the rate of the first step; one number, or one per parameter group."},
    {"scheduler.params", "warmup_max_lr", rates, "", honoured, "WarmupLR, WarmupDecayLR: the rate after warm-up, of every parameter group or one for each. Without it: each group's own lr (WarmupLR), 0.001 (WarmupDecayLR); \"auto\" is each group's own lr."},
    {"scheduler.params", "warmup_num_steps", integer, "1000", honoured, "WarmupLR, WarmupDecayLR, WarmupCosineLR. Fewer than 2 count as 2. \"auto\" is 1, which Hugging Face's trainer fills in unless it is told of a warm-up.", elements},
    {"scheduler.params", "warmup_type", choice, "log", honoured, "WarmupLR, WarmupDecayLR, WarmupCosineLR: how the rate rises.", one_of("log|linear")},
    {"scheduler.params", "total_num_steps", integer, "", honoured, "WarmupDecayLR and linear reach 0 here, WarmupCosineLR cos_min_ratio; without effect for others. Without it, or with \"auto\": the steps of the run.", one_or_more},
    {"scheduler.params", "last_batch_iteration", integer, "-1", without_effect, "The rate is a function of the step.", between(-1, kMaxInteger)},
    {"scheduler.params", "warmup_min_ratio", number, "0", honoured, "WarmupCosineLR: the first rate, as a part of the optimizer's lr. The very first update has rate 0, as in DeepSpeed."},
    {"scheduler.params", "cos_min_ratio", number, "0.0001", honoured, "WarmupCosineLR: the last rate, as a part of the optimizer's lr."},
    {"scheduler.params", "lr_range_test_min_lr", rates, "0.001", honoured, "LRRangeTest: the first rate."},
    {"scheduler.params", "lr_range_test_step_size", integer, "2000", honoured, "LRRangeTest: the rate grows by step_rate times itself in so many steps.", one_or_more},
    {"scheduler.params", "lr_range_test_step_rate", number, "1.0", honoured, "LRRangeTest: how fast the rate grows."},
    {"scheduler.params", "lr_range_test_staircase", boolean, "false", honoured, "LRRangeTest: the rate changes every lr_range_test_step_size steps only."},
    {"scheduler.params", "cycle_min_lr", rates, "", honoured, "OneCycle: the lowest rate; needed."},
    {"scheduler.params", "cycle_max_lr", rates, "", honoured, "OneCycle: the highest rate; needed."},
    {"scheduler.params", "decay_lr_rate", number, "0", honoured, "OneCycle: after the cycle the rate is divided by 1 + this, 1 + twice this, ... every decay_step_size steps."},
    {"scheduler.params", "cycle_first_step_size", integer, "2000", honoured, "OneCycle: steps in which the rate rises.", one_or_more},
    {"scheduler.params", "cycle_second_step_size", integer, "", honoured, "OneCycle: steps in which the rate falls. Without it: cycle_first_step_size.", elements},
    {"scheduler.params", "cycle_first_stair_count", integer, "0", honoured, "OneCycle: the rate rises in so many stairs; 0: smoothly.", elements},
    {"scheduler.params", "cycle_second_stair_count", integer, "", honoured, "OneCycle: the same for the falling half. Without it: cycle_first_stair_count.", elements},
    {"scheduler.params", "decay_step_size", integer, "0", honoured, "OneCycle: steps per decay; 0: no decay.", elements},
    {"scheduler.params", "cycle_momentum", boolean, "true", honoured, "OneCycle: beta1 cycles against the rate, and beta2 is 0.99, as in DeepSpeed. \"auto\" is true."},
    {"scheduler.params", "cycle_min_mom", rates, "0.8", honoured, "OneCycle: the lowest beta1. The very first update has it, as in DeepSpeed.", between(0, kBelowOne)},
    {"scheduler.params", "cycle_max_mom", rates, "0.9", honoured, "OneCycle: the highest beta1.", between(0, kBelowOne)},
    {"scheduler.params", "decay_mom_rate", number, "0", honoured, "OneCycle: after the cycle beta1 is multiplied by 1 + this, ... every decay_step_size steps; a run in which it would reach 1 is refused."},

    // Precision.
    {"", "bf16", section, "", honoured, "Without it and fp16, parameters and gradients are fp32."},
    {"", "bfloat16", section, "", mapped, "The old name of bf16.", same_as("bf16")},
    {"bf16", "enabled", boolean, "false", honoured, "bf16 parameters and gradients, fp32 master weights, and fp32 moments unless bf16_optimizer_states is true. \"auto\" is true unless fp16.enabled is."},
    {"bf16", "immediate_grad_update", boolean, "false", without_effect, "Gradients land once, at their final place."},
    {"bf16", "check_grad_overflow", boolean, "true", without_effect, "The norm of every step is checked."},
    {"bf16", "bf16_master_weights_and_grads", boolean, "false", honoured, "Accepted beside bf16_optimizer_states, for which DeepSpeed asks it, and without effect there: master weights are always fp32, and gradients have the precision of the parameters anyway."},
    {"bf16", "bf16_optimizer_states", boolean, "false", honoured, "Moments in bf16 beside fp32 master weights: 4 bytes less per parameter with Adam. DeepSpeed has it with bf16 master weights only."},
    {"", "fp16", section, "", honoured, "Cannot be enabled together with bf16."},
    {"fp16", "enabled", boolean, "false", honoured, "fp16 parameters and gradients with a loss scale, fp32 master weights and moments. \"auto\" is false."},
    {"fp16", "auto_cast", boolean, "false", without_effect, "Inputs are token numbers; there is nothing to cast."},
    {"fp16", "loss_scale", number, "0", honoured, "0: dynamic, from the keys below; else this scale, always: a number that fp32 can hold.", between(0, kMaxFp32)},
    {"fp16", "initial_scale_power", integer, "16", honoured, "The dynamic scale begins at 2 to this power.", between(0, 126)},
    {"fp16", "loss_scale_window", integer, "1000", honoured, "Updates without an overflow until the scale doubles; at least 1 where the scale is dynamic.", counted},
    {"fp16", "hysteresis", integer, "2", honoured, "Overflows until the scale is halved.", at_least_one},
    {"fp16", "consecutive_hysteresis", boolean, "false", honoured, "An update without an overflow refills the hysteresis."},
    {"fp16", "min_loss_scale", number, "1", honoured, "The smallest dynamic scale, above 0 and at most the first one; an overflow there ends the run.", between(0, kMaxFp32)},
    {"fp16", "fused_mode", boolean, "true", without_effect, "There is one implementation."},
    {"fp16", "fp16_master_weights_and_grads", boolean, "false", refused, "Master weights are always fp32.", only_false},
    {"", "amp", section, "", honoured, "Accepted while it is off."},
    {"amp", "enabled", boolean, "false", refused, "Apex AMP is not supported; use bf16 or fp16. \"auto\" is false.", only_false},
    {"amp", "opt_level", text, "O1", without_effect, "Only used by Apex AMP."},
    {"", "torch_autocast", section, "", honoured, "Accepted while it is off."},
    {"torch_autocast", "enabled", boolean, "false", refused, "Autocasting is not supported; use bf16 or fp16. \"auto\" is false.", only_false},
    {"torch_autocast", "dtype", text, "bfloat16", without_effect, "Only used by autocasting."},
    {"torch_autocast", "lower_precision_safe_modules", any, "", without_effect, "Only used by autocasting."},
    {"", "data_types", section, "", honoured, "Precision of accumulated gradients."},
    {"data_types", "grad_accum_dtype", choice, "", honoured, "The type in which the gradients of several micro-batches are summed: fp32 or that of the parameters. Without it: fp32, where DeepSpeed takes that of the parameters.", one_of("fp32|float32|float|bf16|bfloat16|fp16|float16|half|none")},
    {"data_types", "param_dtype", any, "", refused, "The precision of parameters is that of the bf16 or fp16 section."},
    {"data_types", "buffer_dtype", any, "", refused, "The program's models have no buffers."},
    {"data_types", "keep_in_fp32_modules", any, "auto", refused, "All parameters have one precision. \"auto\" is accepted."},

    // ZeRO and offload.
    {"", "zero_optimization", section, "", honoured, "true stands for stage 1."},
    {kZero, "stage", integer, "0", honoured, "Says which offload sections may be used; see \"What the stages mean here\".", between(0, 3)},
    {kZero, "offload_param", section, "", honoured, "Where parameters live between uses."},
    {kParam, "device", choice, "none", honoured, "none: device memory; cpu: host memory; nvme: a file, with host memory as its cache.", one_of("none|cpu|nvme")},
    {kParam, "nvme_path", path_list, "", honoured, "An existing folder, or a list of folders on different drives, which are used as one; needed when device is nvme. With several ranks terrace.nvme_share says who uses which, and {rank}, {local_rank} and {host} in a path are those of each rank."},
    {kParam, "pin_memory", boolean, "true", honoured, "Page-lock the host memory where the system allows it."},
    {kParam, "buffer_count", integer, "5", without_effect, "Buffers are sized by the plan.", counted},
    {kParam, "buffer_size", integer, "1e8", without_effect, "A tensor may span chunks; there is no largest one.", elements},
    {kParam, "max_in_cpu", integer, "1e9", without_effect, "terrace.host_memory bounds host memory: 2 bytes for each bf16 or fp16 parameter that is to be kept there, 4 in fp32, beside gradients, states and buffers.", elements},
    {kZero, "offload_optimizer", section, "", honoured, "Where master weights and moments live."},
    {kState, "device", choice, "none", honoured, "As for parameters. nvme is honoured in stages 1 and 2 as well, where DeepSpeed quietly uses host memory.", one_of("none|cpu|nvme")},
    {kState, "nvme_path", path_list, "", honoured, "An existing folder or a list of folders, as for parameters; needed when device is nvme."},
    {kState, "pin_memory", boolean, "true", honoured, "Page-lock the host memory where the system allows it."},
    {kState, "buffer_count", integer, "4", without_effect, "Buffers are sized by the plan.", counted},
    {kState, "buffer_size", integer, "", without_effect, "Buffers are sized by the plan; DeepSpeed has no such key either.", elements},
    {kState, "pipeline_read", boolean, "false", without_effect, "Reads always run ahead of the update."},
    {kState, "pipeline_write", boolean, "false", without_effect, "Writes always overlap the update."},
    {kState, "fast_init", boolean, "false", without_effect, "Initial states are always written in one stream."},
    {kState, "ratio", number, "1.0", honoured, "How much of the parameters the processor updates; the device updates the rest at the same time. States stay where device says either way, and pass through the device; in DeepSpeed those of the rest live there. No number depends on it. \"auto\": measured rates of both sides decide for every chunk, see [optimizer_step.md](optimizer_step.md).", between(0, 1)},
    {kState, "super_offload", boolean, "false", without_effect, "Transfers and updates always overlap."},
    {kState, "cpuadam_cores_perc", number, "0.8", without_effect, "terrace.threads sets the number of compute threads."},
    {kZero, "sub_group_size", integer, "1e9", honoured, "Elements; an upper bound of the chunk size. 0, which is one sub-group per tensor in DeepSpeed, is none; from 1 to 4095 it is 4096, the smallest chunk.", elements},
    {kZero, "stage3_prefetch_bucket_size", integer, "", honoured, "Elements fetched ahead at most; 0 turns prefetch off. Without it, or with \"auto\": terrace.prefetch_depth alone decides.", elements},
    {kZero, "stage3_max_live_parameters", integer, "1e9", without_effect, kLiveBytes, elements},
    {kZero, "stage3_max_reuse_distance", integer, "1e9", without_effect, kBudgetRules, elements},
    {kZero, "stage3_param_persistence_threshold", integer, "1e5", without_effect, kPersistentBytes, elements},
    {kZero, "stage3_model_persistence_threshold", integer, "", without_effect, kPersistentBytes, elements},
    {kZero, "stage3_gather_16bit_weights_on_model_save", boolean, "false", honoured, "Every save also writes the weights in 16 bits as safetensors. A run that goes on from a checkpoint whose weights were not written yet writes them first."},
    {kZero, "stage3_gather_fp16_weights_on_model_save", boolean, "", mapped, "The old name of stage3_gather_16bit_weights_on_model_save.", same_as("zero_optimization.stage3_gather_16bit_weights_on_model_save")},
    {kZero, "stage3_module_granularity_threshold", integer, "0", without_effect, kNoGathering, elements},
    {kZero, "stage3_use_all_reduce_for_fetch_params", boolean, "false", without_effect, kChunkMoves},
    {kZero, "stage3_allgather_sequential", boolean, "false", without_effect, kChunkMoves},
    {kZero, "prefetch_bucket_size", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_prefetch_bucket_size")},
    {kZero, "max_live_parameters", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_max_live_parameters")},
    {kZero, "max_reuse_distance", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_max_reuse_distance")},
    {kZero, "param_persistence_threshold", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_param_persistence_threshold")},
    {kZero, "model_persistence_threshold", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_model_persistence_threshold")},
    {kZero, "gather_16bit_weights_on_model_save", boolean, "", mapped, kNoStage3, same_as("zero_optimization.stage3_gather_16bit_weights_on_model_save")},
    {kZero, "gather_fp16_weights_on_model_save", boolean, "", mapped, kNoStage3, same_as("zero_optimization.stage3_gather_16bit_weights_on_model_save")},
    {kZero, "module_granularity_threshold", integer, "", mapped, kNoStage3, same_as("zero_optimization.stage3_module_granularity_threshold")},
    {kZero, "use_all_reduce_for_fetch_params", boolean, "", mapped, kNoStage3, same_as("zero_optimization.stage3_use_all_reduce_for_fetch_params")},
    {kZero, "allgather_sequential", boolean, "", mapped, kNoStage3, same_as("zero_optimization.stage3_allgather_sequential")},
    {kZero, "cpu_offload", boolean, "false", mapped, "true stands for offload_optimizer.device = cpu.", old_name_of("zero_optimization.offload_optimizer.device")},
    {kZero, "cpu_offload_params", boolean, "false", mapped, "true stands for offload_param.device = cpu.", old_name_of("zero_optimization.offload_param.device")},
    {kZero, "cpu_offload_param", boolean, "false", mapped, "true stands for offload_param.device = cpu.", old_name_of("zero_optimization.offload_param.device")},
    {kZero, "cpu_offload_use_pin_memory", boolean, "true", mapped, "Stands for offload_optimizer.pin_memory.", old_name_of("zero_optimization.offload_optimizer.pin_memory")},
    {kZero, "aio", section, "", mapped, "Some files have the aio section here; it belongs to the top level.", same_as("aio")},
    {kZero, "contiguous_gradients", boolean, "true", without_effect, "Gradients always land at their final place."},
    {kZero, "reduce_scatter", boolean, "true", without_effect, kOwnerSums},
    {kZero, "reduce_bucket_size", integer, "5e8", without_effect, kChunkMoves, elements},
    {kZero, "use_multi_rank_bucket_allreduce", boolean, "true", without_effect, kChunkMoves},
    {kZero, "allgather_partitions", boolean, "true", without_effect, kChunkMoves},
    {kZero, "allgather_bucket_size", integer, "5e8", without_effect, kChunkMoves, elements},
    {kZero, "overlap_comm", boolean, "true", honoured, "false: a rank waits for the parameters of the others, and for the exchange of gradients, where it asks for them, and not where they are needed; for looking at a run. The numbers are the same, bit for bit."},
    {kZero, "round_robin_gradients", boolean, "false", without_effect, kOwnerSums},
    {kZero, "compute_grad_norm", boolean, "true", without_effect, "The norm is always computed and reported."},
    {kZero, "load_from_fp32_weights", boolean, "true", without_effect, "A resumed run always continues from the fp32 master weights."},
    {kZero, "elastic_checkpoint", boolean, "false", without_effect, "Checkpoints do not depend on the number of ranks."},
    {kZero, "legacy_stage1", boolean, "false", refused, "DeepSpeed has removed it.", only_false},
    {kZero, "ignore_unused_parameters", boolean, "true", without_effect, "A parameter without a gradient is updated with a gradient of zero."},
    {kZero, "zero_hpz_partition_size", integer, "1", honoured, "Above 1: parameters that have come from other hosts are kept in host memory, cut over the ranks of the host, before optimizer states are, so that they cross once for an update and not with every fetch. Without it, after them. They are exact, and as many as the budget has room for (docs/ranks.md).", counted},
    {kZero, "zero_quantized_weights", boolean, "false", honoured, "true: trained parameters of 16 bits are rounded to 8 bits in blocks of 64 wherever they are made of their fp32 masters, which stay exact, and cross between hosts in so many. The numbers change, and are the same on any number of ranks, one included (docs/ranks.md)."},
    {kZero, "zero_quantized_nontrainable_weights", boolean, "false", refused, "Frozen weights have no masters that would stay exact.", only_false},
    {kZero, "zero_quantized_gradients", boolean, "false", honoured, "true: what joins the sum of a step, which is the sum of each gradient group, is rounded to terrace.quantized_gradient_bits in blocks of 64, and crosses between hosts in so many. The numbers change, and are the same on any number of ranks, one included (docs/ranks.md)."},
    {kZero, "zeropp_loco_param", open_section, "", refused, "Its error feedback would make the numbers depend on the number of ranks."},
    {kZero, "mics_shard_size", integer, "-1", honoured, "Ranks of a sub-group, which divides the ranks: each sub-group holds the parameters once, as far as the host budget has room, so that after an update they cross between sub-groups once. Optimizer states and sums of gradients stay cut over all ranks. A host holds them once in any case, so sub-groups are whole hosts. The numbers are the same, bit for bit (docs/ranks.md).", between(-1, kMaxCount)},
    {kZero, "mics_hierarchical_params_gather", boolean, "false", without_effect, "Parameters always cross to a host once, and go on from there."},
    {kZero, "memory_efficient_linear", boolean, "true", without_effect, "No operation keeps parameters after it."},
    {kZero, "pipeline_loading_checkpoint", boolean, "false", without_effect, "Checkpoints are loaded as a stream always."},
    {kZero, "override_module_apply", boolean, "true", without_effect, kNoGathering},
    {kZero, "log_trace_cache_warnings", boolean, "false", without_effect, "A changed schedule is always counted in the report."},
    {kZero, "enable_sanity_checks", boolean, "false", without_effect, "Checks are always on; terrace.strict adds more."},
    {kZero, "save_muon_momentum_buffer_in_memory", boolean, "false", without_effect, "Moments of Muon are where offload_optimizer places all states."},
    {kZero, "parameter_alignment", any, "", without_effect, "Tensors are aligned to 64 elements."},
    {kZero, "leaf_module", section, "", without_effect, kNoGathering},
    {"zero_optimization.leaf_module", "classes", any, "", without_effect, kNoGathering},
    {"zero_optimization.leaf_module", "names", any, "", without_effect, kNoGathering},
    {"zero_optimization.leaf_module", "name_suffixes", any, "", without_effect, kNoGathering},
    {kZero, "zenflow", section, "", honoured, "Accepted while it is empty."},
    {kZenflow, "topk_ratio", number, "0.1", refused, kNoZenflow},
    {kZenflow, "select_strategy", text, "auto", refused, kNoZenflow},
    {kZenflow, "select_interval", any, "auto", refused, kNoZenflow},
    {kZenflow, "update_interval", any, "auto", refused, kNoZenflow},
    {kZenflow, "overlap_step", boolean, "false", refused, kNoZenflow},
    {kZenflow, "offload", boolean, "false", refused, kNoZenflow},
    {kZenflow, "auto_ratio", number, "0.99", refused, kNoZenflow},
    {kZenflow, "full_warm_up_rounds", integer, "0", refused, kNoZenflow},
    {kZenflow, "pt_reserved_cores_perc", number, "0.5", refused, kNoZenflow},
    {kZenflow, "steps_per_epoch", integer, "", refused, kNoZenflow},

    // I/O.
    {"", "aio", section, "", honoured, "File I/O of the nvme tier. Without a key: the engine's own choice."},
    {"aio", "block_size", size, "", honoured, "Bytes of the largest single request, a multiple of 4096.", between(io::kDirectBytes, io::kLargestBlockBytes)},
    {"aio", "queue_depth", integer, "", honoured, "Requests in flight.", between(1, io::kLargestQueueDepth)},
    {"aio", "intra_op_parallelism", integer, "", honoured, "Threads of the engine \"threads\", and of the reads of use_gds.", between(1, io::kMostEngineThreads)},
    {"aio", "thread_count", integer, "", mapped, kOldAio, old_threads},
    {"aio", "num_threads", integer, "", mapped, "The name that ds_nvme_tune prints for intra_op_parallelism.", old_threads},
    {"aio", "single_submit", boolean, "false", without_effect, "Requests are submitted in batches as they arise.", {.boolean_texts = true}},
    {"aio", "overlap_events", boolean, "true", without_effect, "The queue is refilled at every completion.", {.boolean_texts = true}},
    {"aio", "use_gds", boolean, "false", honoured, "Parameters on nvme are read into the memory of the GPU by cuFile (GPUDirect Storage), through no slot in host memory. Needs terrace.device cuda and terrace.verify_checksums false, since no processor sees these bytes (docs/nvme_tier.md); no drive has been tried yet that cuFile takes. \"auto\": where it can be done, else a warning says why not.", {.boolean_texts = true}},

    // Activations, checkpoints and what surrounds training.
    {"", "activation_checkpointing", section, "", honoured, "What is kept of forward for backward. With or without this section each layer keeps its input only and is computed again; terrace.checkpoint_activations turns that off."},
    {"activation_checkpointing", "partition_activations", boolean, "false", without_effect, "No activation is on two ranks."},
    {"activation_checkpointing", "number_checkpoints", integer, "", honoured, "How many layer inputs are kept; what lies between them is computed again. Without it: one per layer.", counted},
    {"activation_checkpointing", "contiguous_memory_optimization", boolean, "false", without_effect, "Activations live in one arena always."},
    {"activation_checkpointing", "cpu_checkpointing", boolean, "false", honoured, "Kept inputs wait in host memory, inside terrace.host_memory; terrace.offload_activations knows more places."},
    {"activation_checkpointing", "synchronize_checkpoint_boundary", boolean, "false", without_effect, kTimers},
    {"activation_checkpointing", "profile", boolean, "false", without_effect, "Every step's report has its times."},
    {"", "checkpoint", section, "", without_effect, kWriter},
    {"checkpoint", "tag_validation", choice, "Warn", without_effect, kFirstSaves, one_of("Warn|Ignore|Fail")},
    {"checkpoint", "load_universal", boolean, "false", without_effect, "Checkpoints do not depend on the number of ranks."},
    {"checkpoint", "use_node_local_storage", boolean, "false", without_effect, kFirstSaves},
    {"checkpoint", "parallel_write", section, "", without_effect, kWriter},
    {"checkpoint.parallel_write", "pipeline_stage", boolean, "false", without_effect, kWriter},
    {"checkpoint", "checkpoint_serialization", boolean, "true", without_effect, kWriter},
    {"checkpoint", "writer", section, "", without_effect, kWriter},
    {"checkpoint.writer", "type", text, "FAST", without_effect, kWriter},
    {"checkpoint.writer", "decoupled", boolean, "false", without_effect, kWriter},
    {"checkpoint.writer", "io_buffer_size", integer, "67108864", without_effect, kWriter, elements},
    {"checkpoint.writer", "io_buffer_double", boolean, "true", without_effect, kWriter},
    {"checkpoint.writer", "show_statistics", boolean, "false", without_effect, kWriter},
    {"checkpoint.writer", "data_parallel", text, "", without_effect, kWriter},
    {"checkpoint.writer", "io_multiplier", integer, "1", without_effect, kWriter, counted},
    {"", "nebula", open_section, "", refused, "The Nebula service is not supported.", when_off},
    {"", "datastates", open_section, "", refused, "DataStates checkpoints are not supported."},
    {"", "tensorboard", section, "", honoured, "Scalars of every update as TensorBoard reads them, under DeepSpeed's tags; the step is the number of sequences seen."},
    {"tensorboard", "enabled", boolean, "false", honoured, "Write event files."},
    {"tensorboard", "output_path", text, "", honoured, kOutputPath},
    {"tensorboard", "job_name", text, "DeepSpeedJobName", honoured, kJobName},
    {"", "wandb", section, "", without_effect, kService, warned_of},
    {"wandb", "enabled", boolean, "false", without_effect, kUnread},
    {"wandb", "group", text, "", without_effect, kUnread},
    {"wandb", "team", text, "", without_effect, kUnread},
    {"wandb", "project", text, "deepspeed", without_effect, kUnread},
    {"", "csv_monitor", section, "", honoured, "The same scalars as one CSV file per tag."},
    {"csv_monitor", "enabled", boolean, "false", honoured, "Write CSV files."},
    {"csv_monitor", "output_path", text, "", honoured, kOutputPath},
    {"csv_monitor", "job_name", text, "DeepSpeedJobName", honoured, kJobName},
    {"", "comet", section, "", without_effect, kService, warned_of},
    {"comet", "enabled", boolean, "false", without_effect, kUnread},
    {"comet", "samples_log_interval", integer, "100", without_effect, kUnread, elements},
    {"comet", "project", text, "", without_effect, kUnread},
    {"comet", "workspace", text, "", without_effect, kUnread},
    {"comet", "api_key", text, "", without_effect, kUnread},
    {"comet", "experiment_name", text, "", without_effect, kUnread},
    {"comet", "experiment_key", text, "", without_effect, kUnread},
    {"comet", "online", boolean, "", without_effect, kUnread},
    {"comet", "mode", choice, "get_or_create", without_effect, kUnread, one_of("get|create|get_or_create")},
    {"", "monitor", section, "", honoured, "DeepSpeed does not read it; its sections stand for those of the top level."},
    {"monitor", "tensorboard", section, "", mapped, kMonitorSection, same_as("tensorboard")},
    {"monitor", "csv_monitor", section, "", mapped, kMonitorSection, same_as("csv_monitor")},
    {"monitor", "enabled", boolean, "", without_effect, "Each of its sections has a switch of its own."},
    {"monitor", "tag", any, "", without_effect, "DeepSpeed does not read it either."},
    {"monitor", "wandb", section, "", mapped, kMonitorSection, same_as("wandb")},
    {"monitor", "comet", section, "", mapped, kMonitorSection, same_as("comet")},
    {"", "monitor_config", section, "", mapped, "Another name of monitor.", same_as("monitor")},
    {"", "timers", section, "", without_effect, kTimers},
    {"timers", "throughput", section, "", without_effect, kTimers},
    {"timers.throughput", "enabled", boolean, "true", without_effect, kTimers},
    {"timers.throughput", "synchronized", boolean, "true", without_effect, kTimers},
    {"", "comms_logger", section, "", honoured, "What ranks exchange, step by step."},
    {"comms_logger", "enabled", boolean, "false", honoured, "With several ranks: the log of steps (--log) has operations, bytes and waits of each lane of the first rank (docs/steps_jsonl.md). It has the bytes of parameters and gradients anyway."},
    {"comms_logger", "verbose", boolean, "false", without_effect, kLaneLog},
    {"comms_logger", "prof_all", boolean, "true", without_effect, kLaneLog},
    {"comms_logger", "prof_ops", any, "", without_effect, kLaneLog},
    {"comms_logger", "debug", boolean, "false", without_effect, kLaneLog},
    {"", "flops_profiler", open_section, "", without_effect, "Every step's report has its times."},
    {"", "autotuning", open_section, "", without_effect, "The planner does this work."},
    {"", "elasticity", open_section, "", refused, "It would choose another batch size than the file.", when_off},
    {"", "data_efficiency", open_section, "", refused, "It would change the data that is trained on.", when_off},
    {"", "curriculum_learning", open_section, "", refused, "It would change the data that is trained on.", when_off},
    {"", "compression_training", open_section, "", refused, kCompression, when_off},
    {"", "quantize_training", open_section, "", refused, kCompression, when_off},
    {"", "weight_quantization", open_section, "", refused, kCompression, when_off},
    {"", "eigenvalue", open_section, "", refused, "Only quantization while training uses it, which is not supported.", when_off},
    {"", "progressive_layer_drop", open_section, "", refused, "It would change the model.", when_off},
    {"", "sparse_attention", open_section, "", refused, "It would change the model."},
    {"", "tensor_parallel", open_section, "", without_effect, kDegree, undivided},
    {"", "pipeline", open_section, "", without_effect, kDegree, undivided},
    {"", "hybrid_engine", open_section, "", refused, "There is no inference engine.", when_off},
    {"", "compile", section, "", honoured, "Accepted while it is off."},
    {"compile", "enabled", boolean, "false", refused, kNoCompiler, only_false},
    {"compile", "backend", any, "", without_effect, kNoCompiler},
    {"compile", "kwargs", any, "", without_effect, kNoCompiler},
    {"compile", "deepcompile", boolean, "false", refused, kNoCompiler, only_false},
    {"compile", "offload_activation", boolean, "false", refused, "Set activation_checkpointing.cpu_checkpointing instead.", only_false},
    {"compile", "offload_activation_pin_memory", boolean, "true", without_effect, "Only used by offload_activation."},
    {"compile", "offload_opt_states", boolean, "false", refused, "Set zero_optimization.offload_optimizer instead.", only_false},
    {"compile", "offload_parameters", boolean, "false", refused, "Set zero_optimization.offload_param instead.", only_false},
    {"compile", "double_buffer", boolean, "true", without_effect, kDeepCompile},
    {"compile", "free_activation", boolean, "false", without_effect, kDeepCompile},
    {"compile", "free_activation_threshold", integer, "", without_effect, kDeepCompile, elements},
    {"compile", "autoep_non_moe", boolean, "false", without_effect, kDeepCompile},
    {"compile", "keep_int_input_tensors", boolean, "true", without_effect, kDeepCompile},
    {"compile", "keep_all_input_tensors", boolean, "false", without_effect, kDeepCompile},
    {"compile", "passes", any, "", without_effect, kDeepCompile},
    {"compile", "symmetric_memory", boolean, "false", without_effect, kDeepCompile},
    {"compile", "debug_log", boolean, "false", without_effect, kDeepCompile},
    {"compile", "sync_before_reduce", boolean, "false", without_effect, kDeepCompile},
    {"compile", "sync_after_reduce", boolean, "false", without_effect, kDeepCompile},
    {"compile", "sync_before_allgather", boolean, "false", without_effect, kDeepCompile},
    {"compile", "sync_after_allgather", boolean, "false", without_effect, kDeepCompile},

    // Keys of our own.
    {"", "terrace", section, "", honoured, "What DeepSpeed has no key for."},
    {"terrace", "device", choice, "simulated", honoured, "Where operations compute: on the simulated device, which is host memory and the processor, or on the first GPU (cuda), which has been tried on an H200 (docs/cuda.md). auto: on a GPU where there is one that this build can use, else simulated.", one_of("simulated|cuda|auto")},
    {"terrace", "gpu_products", choice, "auto", honoured, "On a GPU: the library of matrix products: cuBLASLt, loaded when it is wanted (cublaslt), or the kernels of this build (own). auto: cuBLASLt where one is installed that the driver can run, else own. Either gives its own bits in every run, and not those of the other (docs/cuda_compute.md).", one_of("auto|cublaslt|own")},
    {"terrace", "compute", choice, "auto", honoured, "In which type matrices are multiplied; sums are fp32, and so is what is kept. parameter_type: with bf16 or fp16 parameters, activations and gradients are rounded to that type for each product, as peers have it (the processor multiplies fp16 in fp32). fp32: such parameters are widened, and nothing is rounded. bf16: both sides of a product are rounded to it, whatever the parameters are on the processor; a GPU takes bf16 parameters for it. bf16_amx: the same with the sums of Intel's AMX, on the processor alone; where there is no AMX it is emulated, slower than fp32. auto: parameter_type on a GPU, fp32 on the processor (docs/host_compute.md, docs/cuda_compute.md).", one_of("auto|parameter_type|fp32|bf16|bf16_amx")},
    {"terrace", "gpu_compute", choice, "", mapped, "The old name of compute, of products on a GPU alone.", {.allowed = "parameter_type|fp32", .stands_for = "terrace.compute"}},
    {"terrace", "device_memory", size, "", honoured, "Hard budget of device memory, of each rank. Without it: what the plan needs, of the simulated device at most a quarter of the memory where that is enough and else what fits beside the host's, or 95 % of what is free on the GPU.", between(1, kMaxInteger)},
    {"terrace", "host_memory", size, "", honoured, "Hard budget of host memory, of each rank. Without it: four fifths of what is available, which the ranks of a host share.", between(1, kMaxInteger)},
    {"terrace", "chunk_elements", integer, "", honoured, "Elements of a chunk, a multiple of 4096. Without it: the plan decides.", between(4096, kMaxChunk)},
    {"terrace", "policy", choice, "opt", honoured, "Which chunk leaves a full tier: the one needed last (opt), or as Gemini or PatrickStar choose it.", {.allowed = "opt|gemini|patrickstar", .instead = "lru=opt|fifo=opt|mru=opt"}},
    {"terrace", "engine", choice, "auto", honoured, "File I/O engine; auto takes the first that works here.", one_of("auto|io_uring|libaio|threads")},
    {"terrace", "io_uring_sqpoll", boolean, "", without_effect, "The engine io_uring hands its requests over with system calls, without a kernel thread that looks for them."},
    {"terrace", "io_uring_iopoll", boolean, "", without_effect, "The engine io_uring sleeps until the drive interrupts; it does not ask the drive for completions."},
    {"terrace", "prefetch_depth", integer, "16", honoured, "Uses to fetch ahead at most; 0 fetches on demand only.", counted},
    {"terrace", "strict", boolean, "false", honoured, "Turns any use of memory outside its lease into an error. Slow."},
    {"terrace", "verify_checksums", boolean, "true", honoured, "Check every block that is read against its checksum."},
    {"terrace", "compact_state", boolean, "false", honoured, "With bf16 parameters: what is kept of a master weight is what the parameter lacks of it, 2 bytes instead of 4; the numbers are the same, bit for bit."},
    {"terrace", "state_type", choice, "auto", honoured, "The type of moments: fp32, bf16, or int8, which is one byte with its share of a scale, rounded at random (docs/optimizer_step.md). auto: as bf16.bf16_optimizer_states says.", one_of("auto|fp32|bf16|int8")},
    {"terrace", "microbatch_order", choice, "batch", honoured, "In which order the micro-batches of a step go: one after the other (batch), or all of them through each layer before the next one (layer), so that parameters move once per step instead of once per micro-batch; the numbers are the same, bit for bit (docs/microbatch_order.md).", one_of("batch|layer")},
    {"terrace", "update", choice, "auto", honoured, "When the update of a step runs: as a phase of its own (after_backward), while the next forward runs (next_forward), or while gradients become ready (during_backward); the numbers are the same, bit for bit. auto: what the first steps show to be the fastest.", one_of("auto|after_backward|next_forward|during_backward")},
    {"terrace", "device_token", boolean, "", without_effect, "Updates of several processes on one drive are as fast without taking turns as with (docs/nvme_tier.md)."},
    {"terrace", "memory_pressure", boolean, "true", honoured, "With optimizer states on nvme and a memory cgroup with a limit: what host memory keeps of them shrinks while that limit is near, and grows again when it is not (docs/control.md); false leaves it as it is."},
    {"terrace", "durable", boolean, "true", honoured, "With optimizer states on nvme: commit the whole training state there again and again, so that the last commit survives any crash; false overwrites the state in place and removes it at the end."},
    {"terrace", "commit_every_steps", integer, "0", honoured, "Steps from one commit to the next; 0: steps do not decide.", elements},
    {"terrace", "commit_every_seconds", integer, "300", honoured, "Seconds from one commit to the next; 0: time does not decide.", counted},
    {"terrace", "retained_checkpoints", integer, "0", honoured, "How many commits of --save-every, the newest ones, are kept on nvme beside the last commit; each takes the disk space of all records once more.", between(0, 64)},
    {"terrace", "ranks", integer, "1", honoured, "Processes that train together, each with its share of everything (docs/ranks.md). A run has as many as its launcher starts; here and as --ranks it is for planning.", between(1, 16384)},
    {"terrace", "gradient_group", integer, "", honoured, "Micro-batches whose gradients are summed before they join the sum of the step; more than one take a second sum for every gradient. The numbers depend on it, and neither on ranks nor on what is computed where (docs/ranks.md). Without it: as in the run that is gone on from, or the ranks of a host where there are several hosts, or 1.", between(1, 16384)},
    {"terrace", "quantized_gradient_bits", integer, "8", honoured, "With zero_quantized_gradients: 8 or 4.", between(4, 8)},
    {"terrace", "micro_batches", integer, "", honoured, "Micro-batches per update over all ranks, for files without train_batch_size and gradient_accumulation_steps: these numbers stay the same on any number of ranks. Beside one of the two it must say the same.", between(1, 16384)},
    {"terrace", "communicator", choice, "auto", honoured, "How ranks reach each other: by sockets and memory of the one host that they share (host), or by MPI, whose launcher must have started them (mpi). auto: by MPI where its launcher has, else by sockets. nccl: as auto, and parameters that ranks gather and gradients go from GPU to GPU (docs/ranks_memory.md); it needs a GPU for each rank, one host, libnccl.so.2, and ranks that exchange together. auto is never nccl, which has not been tried on GPUs yet.", one_of("auto|host|mpi|nccl")},
    {"terrace", "rank_exchange", choice, "auto", honoured, "How ranks exchange parameters and gradients: together, so that all of them use the same parameters in the same order (symmetric), or each what it needs when it needs it, so that their passes may differ (pulled); the numbers are the same, bit for bit (docs/ranks.md). pulled is refused with microbatch_order layer, with update during_backward, with compare_ranks_every_steps, with update next_forward where parameters are on the device, with optimizer states there unless each rank has all parameters on it, and with communicator nccl. auto: symmetric.", one_of("auto|symmetric|pulled")},
    {"terrace", "rank_timeout_seconds", integer, "60", honoured, "Seconds that ranks which meet by sockets wait for each other to start.", between(1, 31536000)},
    {"terrace", "stall_warning_seconds", integer, "60", honoured, "When one wait takes so many seconds a warning says for what, and where it is for other ranks, who of them is where; again when it has taken twice as long. 0: never.", between(0, 31536000)},
    {"terrace", "stall_abort_seconds", integer, "0", honoured, "A wait of so many seconds ends the run (docs/ranks.md). 0: it may take for ever.", between(0, 31536000)},
    {"terrace", "nvme_share", choice, "auto", honoured, "Which of the folders of nvme_path a rank uses: all of them (all), or those that belong to its place among the H ranks of its host, r, r + H, ... (own). auto: own where their number is a multiple of H, else all.", one_of("auto|all|own")},
    {"terrace", "compare_ranks_every_steps", integer, "0", honoured, "In every so many steps, ranks compare hashes of the parameters that they have from each other; a difference ends the run and is named by rank, step and chunk. 0: never; without it, 1 where terrace.strict is true. On a GPU nothing is compared.", elements},
    {"terrace", "threads", integer, "0", honoured, "Compute threads of each rank, 1024 at most; 0 is one per available core, divided by the ranks of the host.", between(0, 1024)},
    {"terrace", "bind_threads", boolean, "true", honoured, "Bind compute threads to processors of their own: one per core first, node by node. Done only where there are several memory nodes or several hardware threads per core, and no more threads than processors. Ranks of a host that may use the same processors first divide them, whole cores each, where there are as many."},
    {"terrace", "seed", integer, "42", honoured, "Of initial weights and of the order of the data.", elements},
    {"terrace", "offload_activations", choice, "none", honoured, "Where the kept inputs of layers wait for backward: in device memory (none), host memory (cpu, as activation_checkpointing.cpu_checkpointing), or on nvme as far as host memory has no room for them (nvme; parameters or states are there too). auto: in device memory as far as that has room, then in host memory, then on nvme if anything is there; the numbers are the same, bit for bit.", one_of("auto|none|cpu|nvme")},
    {"terrace", "checkpoint_activations", boolean, "true", honoured, "Keep layer inputs only and compute the rest again in backward; false keeps all activations on the device. \"auto\" is true."},
    {"terrace", "frozen", text_list, "", honoured, "Patterns over weight names (*, ?, [0-9]); these weights are not trained and have no optimizer states."},
    {"terrace", "lora", section, "", honoured, "Trains low-rank adapters beside frozen weights; an empty section takes the defaults."},
    {"terrace.lora", "rank", integer, "8", honoured, "Of the adapters.", between(1, 65536)},
    {"terrace.lora", "alpha", number, "16", honoured, "An adapter counts alpha / rank times; not 0, with which it would change nothing."},
    {"terrace.lora", "targets", text_list, "", honoured, "Patterns over module names (*, ?, [0-9]). Without it: the attention projections that PEFT takes for the model's family."},
    {"terrace.lora", "r", integer, "", mapped, kPeftName, {.minimum = 1, .maximum = 65536, .stands_for = "terrace.lora.rank"}},
    {"terrace.lora", "lora_alpha", number, "", mapped, kPeftName, same_as("terrace.lora.alpha")},
    {"terrace.lora", "target_modules", text_list, "", mapped, kPeftName, same_as("terrace.lora.targets")},
    {"terrace", "quantize_base", choice, "none", honoured, "With adapters: the frozen weights of linear layers are kept as codes of 4 (nf4) or 8 bits (int8) with an fp32 number for every 64, wherever they lie and on every link, and each operation makes its weight of them (docs/quantized_base.md).", one_of("none|nf4|int8")},
    {"terrace", "parameter_groups", section_list, "", honoured, "Optimizer settings of some weights; a weight belongs to the first group that matches its name, else to the rest. What a group leaves out is the optimizer's."},
    {"terrace.parameter_groups", "match", text_list, "", honoured, "Patterns over weight names (*, ?, [0-9]); needed, and each must match a weight."},
    {"terrace.parameter_groups", "lr", number, "", honoured, "Learning rate, where the scheduler does not set one for all groups."},
    {"terrace.parameter_groups", "weight_decay", number, "", honoured, "Of all weights of the group. Without it: the optimizer's, and none for biases and norms."},
    {"terrace.parameter_groups", "betas", number_list, "", honoured, "The two moments' decay rates.", between(0, kBelowOne)},
    {"terrace.parameter_groups", "eps", number, "", honoured, "Added to the denominator."},
});
// clang-format on

}  // namespace

std::span<const SchemaKey> schema() {
  return kRows;
}

}  // namespace terrace
