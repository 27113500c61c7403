#include "flags/train_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/runtime/config/engine_config.h>
#include <terrace/runtime/config/parameter_groups.h>
#include <terrace/runtime/config/schema/schema.h>

#include "command_line.h"
#include "flags/model_choice.h"

namespace terrace {
namespace {

// KeyFlag: a flag that replaces a key of the configuration, which checks the value.
struct KeyFlag {
  const char* flag;
  const char* key;
  const char* type;  // empty: the choices of the key
  const char* group;
  const char* help;
};

constexpr const char* kMemory = "Memory and placement";
constexpr const char* kTraining = "Optimizer and batch";
constexpr const char* kDurability = "Checkpoints and output";

constexpr std::array kKeyFlags = {
    KeyFlag{"--device", "terrace.device", "simulated|cuda|auto", kMemory,
            "Where operations compute (default simulated); of GPUs, an H200 has been tried"},
    KeyFlag{
        "--device-memory", "terrace.device_memory", "SIZE", kMemory,
        "Hard budget of device memory; without it, what the run can use, at most a quarter of the memory"},
    KeyFlag{"--host-memory", "terrace.host_memory", "SIZE", kMemory,
            "Hard budget of host memory; without it, four fifths of what is available, less the device"},
    KeyFlag{"--offload-param", "zero_optimization.offload_param.device", "none|cpu|nvme", kMemory,
            "Where parameters live between uses"},
    KeyFlag{"--offload-optimizer", "zero_optimization.offload_optimizer.device", "none|cpu|nvme", kMemory,
            "Where master weights and moments live"},
    KeyFlag{"--state-type", "terrace.state_type", "", kMemory,
            "The type of moments; int8 is one byte with its share of a scale"},
    KeyFlag{"--policy", "terrace.policy", "", kMemory, "Which chunk leaves the device when it is full"},
    KeyFlag{"--engine", "terrace.engine", "", kMemory, "Which file I/O engine is used"},
    KeyFlag{"--chunk-elements", "terrace.chunk_elements", "N", kMemory,
            "Elements of a chunk, a multiple of 4096; without it, the plan decides"},
    KeyFlag{"--prefetch-depth", "terrace.prefetch_depth", "N", kMemory,
            "Uses to fetch ahead at most; 0 fetches on demand only"},
    KeyFlag{"--threads", "terrace.threads", "N", kMemory, "Compute threads; 0 is one per available core"},
    KeyFlag{"--commit-every", "terrace.commit_every_steps", "N", kDurability,
            "With states on nvme: commit there every N steps as well"},
    KeyFlag{"--commit-every-seconds", "terrace.commit_every_seconds", "N", kDurability,
            "Commit there every N seconds (default 300; 0: time does not decide)"},
    KeyFlag{"--rank-timeout", "terrace.rank_timeout_seconds", "N", kDurability,
            "Of several ranks: wait N seconds for the others to start (default 60)"},
    KeyFlag{"--stall-warning", "terrace.stall_warning_seconds", "N", kDurability,
            "Say what the run waits for when one wait takes N seconds (default 60; 0: never)"},
    KeyFlag{"--stall-abort", "terrace.stall_abort_seconds", "N", kDurability,
            "End the run when one wait takes N seconds; without it a run waits for ever"},
    KeyFlag{"--update", "terrace.update", "auto|after_backward|next_forward|during_backward", kMemory,
            "When the update of a step runs; same numbers in each mode"},
    KeyFlag{"--update-ratio", "zero_optimization.offload_optimizer.ratio", "0..1|auto", kMemory,
            "Share of the update that the processor does where states are on cpu or nvme (default 1); the "
            "device does the rest"},
    KeyFlag{"--optimizer", "optimizer.type", "", kTraining, "Optimizer"},
    KeyFlag{"--lr", "optimizer.params.lr", "RATE", kTraining, "Learning rate"},
    KeyFlag{"--micro-batch", "train_micro_batch_size_per_gpu", "N", kTraining,
            "Sequences computed at a time"},
    KeyFlag{"--accumulation", "gradient_accumulation_steps", "N", kTraining, "Micro-batches per update"},
    KeyFlag{"--ranks", "terrace.ranks", "N", kTraining, "Ranks that train together, for a plan"},
    KeyFlag{"--microbatch-order", "terrace.microbatch_order", "batch|layer", kTraining,
            "Micro-batches one after the other, or all of them layer by layer; same numbers"},
    KeyFlag{"--quantize-base", "terrace.quantize_base", "none|nf4|int8", kTraining,
            "With adapters (terrace.lora): keep the frozen weights of linear layers as codes of 4 or 8 bits"},
    KeyFlag{"--seed", "terrace.seed", "N", kTraining,
            "Seed of the initial weights and of the order of the data"},
};

size_t index_of(std::string_view flag) {
  const auto found = std::ranges::find(kKeyFlags, flag, &KeyFlag::flag);
  TERRACE_ASSERT(found != kKeyFlags.end(), fmt::format("{} stands for no key", flag));
  return static_cast<size_t>(found - kKeyFlags.begin());
}

constexpr const char* kParamPath = "zero_optimization.offload_param.nvme_path";
constexpr const char* kStatePath = "zero_optimization.offload_optimizer.nvme_path";

constexpr const char* kTrainExamples =
    "Sizes are written 64MiB or 4GiB. Flags take the place of what the configuration file says.\n\n"
    "Examples:\n"
    "  terrace train --data /usr/share/common-licenses --layers 4 --width 256 --heads 4 --context 128 "
    "--steps 200\n"
    "  terrace train --config ds_config.json --data corpus/ --model gpt2-medium --nvme-path /mnt/nvme \\\n"
    "      --device-memory 1GiB --host-memory 4GiB --steps 1000 --save checkpoints --save-every 100 --log "
    "steps.jsonl\n"
    "  terrace train --config ds_config.json --data corpus/ --nvme-path /mnt/nvme --inject "
    "write:error=EIO,at=120 \\\n"
    "      --inject read:delay=20ms,every=10\n";

TrainConfig load(const TrainFlags& flags, const std::vector<ConfigOverride>& overrides) {
  if (flags.config.empty()) return default_train_config(overrides);
  if (!flags.config_text) flags.config_text = config_file(flags.config);
  return parse_train_config(*flags.config_text, flags.config, overrides);
}

void require(bool holds, const char* flag, const char* reason, const char* advice) {
  if (!holds) refuse(flag, reason, advice);
}

void add_model_flags(Command& app, TrainFlags& flags) {
  const FlagGroup group(app, "Model");
  group.text("--model", "DIR|OWNER/NAME|FILE|NAME", flags.model,
             "A Hugging Face folder, or OWNER/NAME from its cache, with the weights; a config.json, or a "
             "released model by its name (default gpt2), to begin anew");
  group.count("--layers", 1, flags.layers, "Layers, instead of the model's own");
  group.count("--width", 1, flags.width, "Width, instead of the model's own");
  group.count("--heads", 1, flags.heads, "Attention heads, instead of the model's own");
  group.count("--context", 1, flags.context, "Tokens of a sequence (default: the model's own, at most 1024)");
}

void add_run_flags(Command& app, TrainFlags& flags) {
  const FlagGroup group(app, "Data and steps");
  flags.data.add_to(group);
  group.number("--validation-fraction", 0, 0.9, flags.validation_fraction,
               "The last part of the data, never trained on (default 0.05; 0: none)");
  group.count(
      "--steps", 1, [&flags](uint64_t n) { flags.steps = n, flags.steps_are_given = true; },
      "Optimizer steps of the whole run, resumed ones included (default 100)");
  group.number("--epochs", 1e-6, 1e6, flags.epochs, "Passes over the data, instead of --steps");
  group.count("--eval-every", 0, flags.eval_every,
              "Held-out loss every N steps; it is always computed at the end");
  group.count("--eval-samples", 1, flags.eval_samples, "Sequences of an evaluation (default 32)");
}

void add_output_flags(Command& app, TrainFlags& flags) {
  const FlagGroup group(app, kDurability);
  group.text("--save", "DIR", flags.save,
             "Save checkpoints in this folder: at the end, and when asked to stop");
  group.count("--save-every", 0, flags.save_every, "Save every N steps as well");
  group.count("--keep-last", 1, flags.keep_last,
              "After each save, remove all but the newest N checkpoints; without it all are kept");
  group.text(
      "--resume", "DIR|nvme|auto", flags.resume,
      "Continue from the latest checkpoint of this folder; nvme: from the last commit on the nvme paths; "
      "auto: from the newest of that and those in --save, or from the beginning when there is none");
  group.yes("--fresh", flags.fresh, "Give up the state that an earlier run left on the nvme paths");
  group.text("--log", "FILE", flags.log, "Append one JSON object per line and step to this file");
  group.text("--record-schedule", "FILE", flags.record_schedule,
             "At the end, write what a step uses, with the times of the last one, for `terrace sim`, as JSON "
             "lines (FILE.jsonl)");
  group.text("--report", "FILE", flags.report,
             "Write what the run did as one HTML page that needs nothing but a browser; it is kept current "
             "while the run goes on (docs/run_report.md)");
  group.text("--trace", "FILE", flags.trace,
             "Record what happens in a few steps in this file, for Perfetto (docs/trace.md)");
  group.text("--trace-steps", "A-B", flags.trace_steps,
             "Which steps (default: three, from the third one of the run on)");
  group.text(
      "--trace-memory", "SIZE", flags.trace_memory,
      "Room for the events of a step, beside all budgets (default 32MiB); what does not fit is counted");
  group.texts("--inject", "SPEC", flags.inject,
              "Make transfers of the nvme tier go wrong on purpose, to rehearse it; may be repeated "
              "(docs/faults.md)");
  group.yes("--no-control", flags.no_control,
            "Listen on no socket: the run cannot be asked or told anything by `terrace ctl` and `terrace "
            "top`");
  group.yes("--print-config", flags.print_config, "Print every value in force with its origin, and exit");
  group.text("--explain", "KEY", flags.explain,
             "Say what a key of the configuration means and what it is in this run, and exit");
  group.yes("--json", flags.json, "Print the result, or the configuration, as JSON");
  group.yes("--verbose", flags.verbose, "Show chunks, slots, threads, bytes and times too");
}

}  // namespace

const std::string& TrainFlags::given(std::string_view flag) const {
  return key_values[index_of(flag)];
}

void TrainFlags::give(std::string_view flag, std::string_view value) {
  key_values[index_of(flag)] = value;
}

void TrainFlags::add_to(Command& app) {
  FlagGroup(app).text("--config", "FILE", config, "A DeepSpeed JSON file (docs/config.md lists its keys)");
  add_model_flags(app, *this);
  add_run_flags(app, *this);
  key_values.resize(kKeyFlags.size());
  // --help lists the groups in the order in which their first flags are added.
  for (const bool trains : {true, false}) {
    for (size_t i = 0; i < kKeyFlags.size(); ++i) {
      const KeyFlag& flag = kKeyFlags[i];
      if ((flag.group == std::string_view(kTraining)) != trains) continue;
      const std::string type(*flag.type != '\0' ? flag.type : find_path(flag.key)->limits.allowed);
      FlagGroup(app, flag.group).text(flag.flag, type, key_values[i], flag.help);
    }
  }
  const FlagGroup group(app, kMemory);
  group.texts(
      "--nvme-path", "DIR", nvme_paths,
      "The folder for what is placed on nvme, whatever the file says; given several times, folders on "
      "different drives that are used as one");
  group.yes("--compact-state", compact_state,
            "With bf16 parameters: keep 2 bytes of a master weight beside them instead of 4; the numbers are "
            "the same");
  group.yes("--strict", strict, "Turn any use of memory outside its lease into an error; slow");
  group.yes("--no-memory-pressure", no_memory_pressure,
            "Keep optimizer states in host memory though the limit of the memory cgroup is near");
  add_output_flags(app, *this);
  app.footer(kTrainExamples);
}

TrainConfig resolve_config(const TrainFlags& flags) {
  std::vector<ConfigOverride> overrides;
  for (size_t i = 0; i < flags.key_values.size(); ++i) {
    if (!flags.key_values[i].empty())
      overrides.push_back({kKeyFlags[i].key, flags.key_values[i], kKeyFlags[i].flag});
  }
  if (flags.ranks_started > 1)
    overrides.push_back({"terrace.ranks", std::to_string(flags.ranks_started), flags.launcher, true});
  if (flags.compact_state) overrides.push_back({"terrace.compact_state", "true", "--compact-state"});
  if (flags.no_memory_pressure)
    overrides.push_back({"terrace.memory_pressure", "false", "--no-memory-pressure"});
  if (flags.strict) overrides.push_back({"terrace.strict", "true", "--strict"});
  if (flags.nvme_paths.empty()) {
    try {
      return load(flags, overrides);
    } catch (const Error& error) {
      if (error.parts().cause != ErrorCause::no_path) throw;
      ErrorParts parts = error.parts();
      parts.advice = "give --nvme-path DIR, a folder on a fast local disk; " + parts.advice;
      throw Error(error.kind(), parts);
    }
  }
  // The path goes to the roles that are on nvme, and only the rest of the configuration says which these are.
  const std::string paths = folder_list(flags.nvme_paths);
  std::vector<ConfigOverride> with_paths = overrides;
  for (const char* key : {kParamPath, kStatePath}) with_paths.push_back({key, paths, "--nvme-path"});
  const PlacementConfig placement = load(flags, with_paths).placement;
  if (placement.parameters == Placement::nvme) overrides.push_back({kParamPath, paths, "--nvme-path"});
  if (placement.states == Placement::nvme) overrides.push_back({kStatePath, paths, "--nvme-path"});
  TrainConfig config = load(flags, overrides);
  if (placement.parameters != Placement::nvme && placement.states != Placement::nvme) {
    config.warnings.push_back(
        "--nvme-path has no effect: nothing is placed on nvme; add --offload-optimizer nvme, or "
        "--offload-param nvme, to place something there");
  }
  return config;
}

TrainerOptions resolve_training(const TrainFlags& flags, std::optional<uint32_t> data_vocabulary) {
  TrainerOptions options;
  options.config = resolve_config(flags);
  const ModelChoice model = choose_model(flags);
  options.model = model.config;
  options.weights = model.weights;
  options.config.warnings.insert(options.config.warnings.end(), model.warnings.begin(), model.warnings.end());
  options.steps = flags.steps;
  const bool retains = options.config.terrace.retained_checkpoints > 0;
  require(flags.save_every == 0 || !flags.save.empty() || retains, "--save-every", "--save is not given",
          "say where with --save DIR, or keep commits on nvme with terrace.retained_checkpoints");
  require(!flags.keep_last || !flags.save.empty(), "--keep-last", "--save is not given",
          "say where checkpoints are saved with --save DIR");
  const bool has_commits =
      options.config.placement.states == Placement::nvme && options.config.terrace.durable;
  require(flags.resume != kResumeAuto || !flags.save.empty() || has_commits, "--resume auto",
          "--save is not given, and this run keeps no commits on nvme",
          "give --save DIR with the folder of the earlier run's checkpoints, or name one with --resume DIR");
  require(!flags.fresh || (flags.resume != kResumeAuto && flags.resume != kResumeNvme), "--fresh",
          "it removes what --resume nvme or auto would go on from", "leave out one of the two");
  require(flags.eval_every == 0 || flags.validation_fraction > 0, "--eval-every",
          "--validation-fraction is 0, so there is nothing to evaluate on", "leave out one of the two");
  if (!model.own_vocabulary) options.model.vocabulary = data_vocabulary.value_or(options.model.vocabulary);
  make_model(options.model, {});  // throws if the sizes do not fit together
  const uint32_t kept = options.config.activations.checkpoint_count;
  if (kept > options.model.layers) {
    options.config.warnings.push_back(fmt::format(
        "activation_checkpointing.number_checkpoints is {}, and the model has {} layers: one input "
        "per layer is kept",
        kept, options.model.layers));
  }
  require(flags.epochs == 0 || !flags.steps_are_given, "--epochs", "--steps is given too",
          "leave out one of the two");
  const std::string warning = schedule_warning(options.config.schedule, options.steps);
  if (!warning.empty() && flags.epochs == 0) options.config.warnings.push_back(warning);
  return options;
}

void settle_steps(TrainFlags& flags, const TrainingData& data, TrainerOptions& options, Log& log) {
  const double samples = static_cast<double>(options.config.batch.train_batch_size());
  const double steps = std::ceil(flags.epochs * static_cast<double>(data.sample_count()) / samples - 1e-9);
  constexpr double kMost = 1e15;
  require(steps <= kMost, "--epochs", "that many passes have more steps than can be counted", "give fewer");
  flags.steps = options.steps = static_cast<uint64_t>(std::max(1.0, steps));
  log.info(fmt::format("--epochs {}: {} steps", flags.epochs, options.steps));
  const std::string warning = schedule_warning(options.config.schedule, options.steps);
  if (!warning.empty()) log.warning(warning);
}

namespace {

TrainingDataOptions data_options(const TrainFlags& flags, const TrainerOptions& options) {
  return {options.model.context, options.config.terrace.seed, flags.validation_fraction};
}

}  // namespace

TrainingData open_training_data(const TrainFlags& flags, const DataChoice& data,
                                const TrainerOptions& options, Log& log) {
  return {data.open(options.model.vocabulary, log), data_options(flags, options)};
}

void require_training_data(const TrainFlags& flags, const DataChoice& data, const TrainerOptions& options) {
  std::optional<OpenTokens> tokens = data.open_as_they_are(options.model.vocabulary);
  if (tokens) TrainingData(*std::move(tokens), data_options(flags, options));
}

}  // namespace terrace
