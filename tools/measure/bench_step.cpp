// `terrace bench step`: measures the optimizer step of a model of any size through the whole Offloader,
// without the model's arithmetic: bytes moved, time, and what it waits for.
#include "measure/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include <terrace/aio/engine.h>
#include <terrace/aio/file.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/host_arena.h>

#include "command_line.h"
#include "console.h"
#include "measure/bench_optimizer.h"
#include "measure/measuring.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepExamples =
    "Examples:\n"
    "  terrace bench step --nvme-path /mnt/nvme --parameters 400M --against-io\n"
    "  terrace bench step --nvme-path /mnt/nvme --parameters 400M --cached-fraction 1/2 --durable \\\n"
    "      --rounds 7 --json\n";

// The device gets this many slots beyond the least, so that fetches run ahead of the uses.
constexpr uint64_t kSpareDeviceSlots = 2;
constexpr uint64_t kLargestBudget = uint64_t{1} << 46;

struct StepFlags {
  std::string parameters = "400M", chunk_elements = "1Mi", type = "bf16";
  BenchOptimizer optimizer;
  std::string moments = "fp32", update = "after_backward";
  std::string parameters_on = "cpu", states_on = "nvme";
  std::vector<std::string> nvme_paths;
  std::string host_memory, device_memory, cached_fraction, update_ratio = "1";
  std::string engine = "auto";
  uint32_t accumulation = 1, threads = 0, rounds = 5, checksums = 1;
  bool compact = false, durable = false, against_io = false, json = false;
};

class BenchStep final : public Subcommand {
 public:
  explicit BenchStep(Command& bench);
  int run() override;

 private:
  void add_model_flags(Command& command);
  void add_place_flags(Command& command);
  void add_measure_flags(Command& command);
  StepPlan plan() const;
  void plan_model(StepPlan& plan) const;
  void plan_optimizer(StepPlan& plan) const;
  void plan_places(StepPlan& plan) const;
  void plan_budgets(StepPlan& plan) const;
  void require_disk(const StepPlan& plan, const MemoryPlan& memory) const;

  StepFlags flags_;
  Console console_;
};

BenchStep::BenchStep(Command& bench)
    : Subcommand(bench, "step",
                 "Measure the optimizer step of a model of any size, without the model's arithmetic") {
  add_model_flags(command_);
  add_place_flags(command_);
  add_measure_flags(command_);
  command_.footer(kStepExamples);
}

void BenchStep::add_model_flags(Command& command) {
  const FlagGroup group(command, "The model");
  group.text("--parameters", "N", flags_.parameters, "How many (default 400M)");
  group.text("--chunk-elements", "N", flags_.chunk_elements, "Of a chunk (default 1Mi)");
  group.text("--dtype", "bf16|fp16|fp32", flags_.type, "Of parameters and gradients (default bf16)");
  flags_.optimizer.add_to(group);
  group.text("--state-type", "fp32|bf16", flags_.moments, "Precision of its moments (default fp32)");
  group.yes("--compact-state", flags_.compact,
            "Store of every master weight only the half that its bf16 parameter lacks");
  group.count("--accumulation", 1, flags_.accumulation, "Micro-batches per update (default 1)", 1024);
}

void BenchStep::add_place_flags(Command& command) {
  const FlagGroup group(command, "Where it lives");
  group.texts("--nvme-path", "DIR", flags_.nvme_paths,
              "Where what is on nvme lies; may be given several times");
  group.text("--offload-param", "none|cpu|nvme", flags_.parameters_on, "Where parameters live (default cpu)");
  group.text("--offload-optimizer", "none|cpu|nvme", flags_.states_on,
             "Where optimizer states live (default nvme)");
  group.text("--host-memory", "SIZE", flags_.host_memory, "Hard budget of host memory");
  group.text("--cached-fraction", "C/S", flags_.cached_fraction,
             "Instead of --host-memory: the part of the states that is resident in host memory (default 0)");
  group.text("--device-memory", "SIZE", flags_.device_memory,
             "Hard budget of the simulated device (default: a little more than the least)");
  group.yes("--durable", flags_.durable, "Write every record to another slot, as commits need it");
  group.count("--checksums", 0, flags_.checksums, "1: compare what is read (default); 0: do not", 1);
}

void BenchStep::add_measure_flags(Command& command) {
  const FlagGroup group(command, "How it is measured");
  group.count("--rounds", 1, flags_.rounds, "Steps that are measured, after one that is not (default 5)",
              10'000);
  group.yes("--against-io", flags_.against_io,
            "After every update move the same blocks of the same file through a ring of the same size "
            "without computing, and compare");
  group.text("--update", "after_backward|next_forward|during_backward", flags_.update,
             "When the update runs (default after_backward); with another mode whole steps are timed");
  group.text("--update-ratio", "R", flags_.update_ratio,
             "Share of the update that the processor does where states are on cpu or nvme (default 1); the "
             "device does the rest");
  group.text("--engine", "NAME", flags_.engine, "auto (default), io_uring, libaio or threads");
  group.count("--threads", 0, flags_.threads, "Compute threads; 0 (default) is one per available core", 1024);
  group.yes("--json", flags_.json, "Print the result as JSON");
}

void BenchStep::plan_model(StepPlan& plan) const {
  plan.parameters = parse_count(flags_.parameters, "--parameters");
  plan.chunk_elements = parse_count(flags_.chunk_elements, "--chunk-elements");
  if (plan.parameters == 0 || plan.parameters > uint64_t{1} << 40)
    refuse("--parameters " + flags_.parameters, "it is 0, or more than 2^40", "give for example 400M");
  if (plan.chunk_elements == 0 || plan.chunk_elements % kTileElements != 0 ||
      plan.chunk_elements > uint64_t{1} << 30) {
    refuse("--chunk-elements " + flags_.chunk_elements,
           fmt::format("it is not a multiple of {} up to 2^30", kTileElements), "give for example 1Mi");
  }
  if (plan.parameters / plan.chunk_elements > 100'000)
    refuse("--chunk-elements " + flags_.chunk_elements, "there would be more than 100,000 chunks",
           "give more");
  plan.type = type_of_flag("--dtype", flags_.type);
  plan_optimizer(plan);
  plan.options.micro_batches = flags_.accumulation;
}

void BenchStep::plan_optimizer(StepPlan& plan) const {
  plan.optimizer = flags_.optimizer.name;
  plan.settings = flags_.optimizer.settings();
  const std::optional<MomentType> moments = moment_type_from_name(flags_.moments);
  if (!moments) refuse("--state-type " + flags_.moments, "it is not fp32, bf16 or int8", "give one of these");
  if (flags_.compact && plan.type != DataType::bf16)
    refuse("--compact-state", "only bf16 parameters are the upper half of their masters",
           "give --dtype bf16");
  plan.options.record_layout = {.master = flags_.compact ? MasterForm::remainder : MasterForm::whole,
                                .moment_count = moment_count(plan.settings.kind, plan.settings.momentum),
                                .moment_type = *moments};
  const std::optional<UpdateMode> mode = update_mode_from_name(flags_.update);
  if (!mode)
    refuse("--update " + flags_.update, "there is no such mode",
           "give after_backward, next_forward or during_backward");
  plan.update_mode = *mode;
}

// Parses a fraction such as "1/4", "0.25", "0" or "1".
double parse_fraction(const char* flag, const std::string& text) {
  const auto number = [&](const std::string& part) {
    size_t used = 0;
    double value = -1;
    try {
      value = std::stod(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != part.size())
      refuse(std::string(flag) + " " + text, "it is no fraction", "give for example 1/4");
    return value;
  };
  const size_t slash = text.find('/');
  const double value = slash == std::string::npos
                           ? number(text)
                           : number(text.substr(0, slash)) / number(text.substr(slash + 1));
  if (!(value >= 0 && value <= 1))
    refuse(std::string(flag) + " " + text, "it is not between 0 and 1", "give for example 1/4");
  return value;
}

void BenchStep::plan_places(StepPlan& plan) const {
  const auto place = [](const std::string& flag, const std::string& name) {
    const std::optional<Placement> placement = placement_from_name(name);
    if (!placement) refuse(flag + " " + name, "there is no such place", "give none, cpu or nvme");
    return *placement;
  };
  OffloadOptions& options = plan.options;
  options.parameters = place("--offload-param", flags_.parameters_on);
  options.states = place("--offload-optimizer", flags_.states_on);
  const bool uses_nvme = options.parameters == Placement::nvme || options.states == Placement::nvme;
  if (uses_nvme && flags_.nvme_paths.empty())
    refuse_missing("--nvme-path", "name the folder that training will use");
  for (const std::string& path : flags_.nvme_paths) {
    require_folder("--nvme-path", path);
    if (std::ranges::any_of(options.state_paths,
                            [&](const TierPath& other) { return fs::equivalent(other.path, path); }))
      refuse("--nvme-path " + path, "it names the same folder again", "name each folder once");
    options.state_paths.push_back({path});
  }
  options.parameter_paths = options.state_paths;
  options.verify_checksums = flags_.checksums == 1;
  options.durable = flags_.durable;
  if (flags_.durable && options.states != Placement::nvme)
    refuse("--durable", "optimizer states are not on nvme", "leave it out, or give --offload-optimizer nvme");
  if (options.states == Placement::none && plan.update_mode != UpdateMode::after_backward)
    refuse("--update " + flags_.update, "optimizer states are on the device", "place them on cpu or nvme");
  options.processor_share = parse_fraction("--update-ratio", flags_.update_ratio);
  if (options.processor_share < 1 && options.states == Placement::none)
    refuse("--update-ratio " + flags_.update_ratio, "optimizer states are on the device",
           "place them on cpu or nvme");
  if (options.processor_share < 1 && flags_.against_io)
    refuse("--update-ratio " + flags_.update_ratio,
           "--against-io moves the states between nvme and host alone", "leave one out");
  plan.against_io = flags_.against_io;
  if (flags_.against_io && plan.update_mode != UpdateMode::after_backward)
    refuse("--against-io", "an update that has no time of its own cannot be compared with its transfers",
           "give --update after_backward");
  if (flags_.against_io && (options.states != Placement::nvme || options.parameters == Placement::nvme ||
                            options.state_paths.size() != 1)) {
    refuse("--against-io", "it moves the states of one folder and nothing else",
           "give --offload-optimizer nvme, parameters elsewhere, and one --nvme-path");
  }
}

// Returns the largest budget with which at most `kept` chunks of states are resident.
uint64_t budget_for(const FlatSpace& space, std::span<const TensorUse> trace, OffloadOptions options,
                    uint32_t kept) {
  options.host_budget_bytes = kLargestBudget;
  const MemoryPlan all = plan_memory(space, trace, options);
  if (options.states != Placement::nvme || kept >= all.record_chunks) return all.host_bytes;
  uint64_t fits = all.host_minimum_bytes, too_much = all.host_bytes;
  while (too_much - fits > HostArena::kAlignment) {
    const uint64_t middle = fits + (too_much - fits) / 2;
    options.host_budget_bytes = middle;
    (plan_memory(space, trace, options).host_record_slots <= kept ? fits : too_much) = middle;
  }
  options.host_budget_bytes = fits;
  return plan_memory(space, trace, options).host_bytes;
}

void BenchStep::plan_budgets(StepPlan& plan) const {
  if (!flags_.host_memory.empty() && !flags_.cached_fraction.empty())
    refuse("--host-memory and --cached-fraction together", "each says how much is cached", "leave one out");
  const std::vector<TensorSpec> tensors = step_tensors(plan);
  const FlatSpace space(tensors, plan.chunk_elements);
  const std::vector<TensorUse> trace = step_trace(plan, tensors);
  OffloadOptions& options = plan.options;
  options.device_budget_bytes = kLargestBudget;
  options.host_budget_bytes = kLargestBudget;
  const MemoryPlan roomy = plan_memory(space, trace, options);
  options.device_budget_bytes =
      flags_.device_memory.empty()
          ? std::min(roomy.device_minimum_bytes + kSpareDeviceSlots * roomy.slot_bytes, roomy.device_bytes)
          : parse_bytes(flags_.device_memory, "--device-memory");
  if (flags_.host_memory.empty()) {
    const double fraction =
        parse_fraction("--cached-fraction", flags_.cached_fraction.empty() ? "0" : flags_.cached_fraction);
    options.host_budget_bytes =
        budget_for(space, trace, options, static_cast<uint32_t>(fraction * roomy.record_chunks + 0.5));
  } else {
    options.host_budget_bytes = parse_bytes(flags_.host_memory, "--host-memory");
  }
  const MemoryPlan memory = plan_memory(space, trace, options);
  require_memory_for(fmt::format("{} parameters", plan.parameters), memory.host_bytes + memory.device_bytes,
                     "give fewer --parameters, or place more on nvme");
  require_disk(plan, memory);
}

void BenchStep::require_disk(const StepPlan& plan, const MemoryPlan& memory) const {
  const uint64_t needed = memory.record_file_bytes + memory.parameter_file_bytes;
  if (plan.options.state_paths.empty() || needed == 0) return;
  uint64_t free = 0;
  for (const TierPath& path : plan.options.state_paths) free += io::free_bytes_at(path.path);
  if (needed <= free) return;
  throw Error(ErrorKind::capacity,
              {fmt::format("this needs {} of disk", format_bytes(needed)),
               plan.options.state_paths.front().path.string(), fmt::format("{} are free", format_bytes(free)),
               "give fewer --parameters, or another --nvme-path"});
}

StepPlan BenchStep::plan() const {
  StepPlan plan;
  plan.rounds = flags_.rounds;
  plan.threads = flags_.threads;
  plan_model(plan);
  plan_places(plan);
  plan.options.io.kind = engine_of_flag("--engine", flags_.engine).kind;
  plan_budgets(plan);
  return plan;
}

int BenchStep::run() {
  const StepPlan chosen = plan();
  return print_measurement(console_, [&] {
    const StepBenchReport report = measure_step(chosen, console_);
    return flags_.json ? step_report_json(report) : step_report_text(report);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_bench_step(Command& bench) {
  return std::make_unique<BenchStep>(bench);
}

}  // namespace terrace
