// `terrace sim`: replays a schedule under eviction policies on a described machine, and reports what each
// moves and how long it waits. The schedule is a file, or the dry run of a model.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/reference/planning/training_schedule.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/observe/trace/schedule_file.h>

#include "command_line.h"
#include "console.h"
#include "flags/model_choice.h"
#include "flags/train_flags.h"
#include "inspect/sim_machine.h"
#include "inspect/sim_report.h"

namespace terrace {
namespace {

constexpr const char* kSimExamples =
    "Examples:\n"
    "  terrace sim --model gpt2 --device-memory 256MiB --host-memory 1GiB\n"
    "  terrace sim step.jsonl --policy opt --policy lru --device-memory 8GiB --h2d 25GB --json\n";
constexpr const char* kSimWhat = "The schedule";
constexpr const char* kSimWhere = "The machine";

struct SimFlags {
  std::string trace, config, write_schedule, operations = "1000G";
  std::vector<std::string> policies;
  SimMachineFlags machine;
  std::optional<uint64_t> chunk_elements, micro_batch, accumulation;
  bool json = false;
};

uint32_t lowest_of(const SimMachine& machine) {
  return static_cast<uint32_t>(machine.tiers.size() - 1);
}

class Sim final : public Subcommand {
 public:
  explicit Sim(Command& app);
  int run() override;

 private:
  void add_schedule_flags(Command& command);
  void add_machine_flags(Command& command);
  SimSchedule schedule(const SimMachine& machine);
  SimSchedule schedule_of_model(const SimMachine& machine);
  std::vector<SimPolicy> policies() const;
  void step(const std::string& text) {
    if (console_.is_terminal()) console_.progress(text);
  }

  SimFlags flags_;
  TrainFlags model_;  // only the flags that name a model are used
  Console console_;
};

Sim::Sim(Command& app)
    : Subcommand(app, "sim",
                 "Replay a schedule under eviction policies on a machine that is described, beside the least "
                 "traffic") {
  model_.model.clear();
  add_schedule_flags(command_);
  add_machine_flags(command_);
  FlagGroup(command_).yes("--json", flags_.json, "Print the result as JSON");
  command_.footer(kSimExamples);
}

void Sim::add_schedule_flags(Command& command) {
  FlagGroup(command).text("trace", "FILE", flags_.trace, "A file of docs/schedule_format.md");
  const FlagGroup what(command, kSimWhat);
  what.text("--model", "NAME|FILE|DIR", model_.model,
            "Instead of a file: a step of this model, run dry (as of `terrace train`)");
  what.count("--layers", 1, model_.layers, "Layers, instead of the model's");
  what.count("--width", 1, model_.width, "Width, instead of the model's");
  what.count("--heads", 1, model_.heads, "Heads, instead of the model's");
  what.count("--context", 1, model_.context, "Tokens of a sequence");
  what.count("--micro-batch", 1, flags_.micro_batch, "Sequences computed at a time");
  what.count("--accumulation", 1, flags_.accumulation, "Micro-batches of a step");
  what.count("--chunk-elements", 1, flags_.chunk_elements,
             "Elements of a chunk, a multiple of 4096 (default 1Mi)");
  what.text("--config", "FILE", flags_.config, "A DeepSpeed JSON file that the model is trained with");
  what.text("--operations", "COUNT", flags_.operations,
            "Additions and multiplications of the device in a second, for the time of uses (default 1000G)");
  what.text("--write-schedule", "FILE", flags_.write_schedule, "Write the schedule to this file as well");
}

void Sim::add_machine_flags(Command& command) {
  const FlagGroup group(command, kSimWhere);
  group.texts("--policy", "NAME", flags_.policies,
              "opt, lru, fifo, mru, gemini, patrickstar or all (default); may be given several times");
  flags_.machine.add_to(group);
}

SimSchedule Sim::schedule_of_model(const SimMachine& machine) {
  std::vector<ConfigOverride> overrides;
  if (flags_.config.empty()) overrides.push_back({"bf16.enabled", "true", "terrace sim"});
  if (flags_.micro_batch)
    overrides.push_back(
        {"train_micro_batch_size_per_gpu", std::to_string(*flags_.micro_batch), "--micro-batch"});
  if (flags_.accumulation)
    overrides.push_back(
        {"gradient_accumulation_steps", std::to_string(*flags_.accumulation), "--accumulation"});
  if (flags_.chunk_elements)
    overrides.push_back(
        {"terrace.chunk_elements", std::to_string(*flags_.chunk_elements), "--chunk-elements"});
  if (!flags_.config.empty()) require_exists("--config", flags_.config);
  const TrainConfig config =
      flags_.config.empty() ? default_train_config(overrides) : load_train_config(flags_.config, overrides);
  const ModelChoice choice = choose_model(model_);
  for (const std::string& warning : choice.warnings) console_.warning(warning);
  const std::unique_ptr<Model> model = make_model(choice.config, model_options(config));
  TrainingScheduleOptions options;
  options.chunk_elements = config.terrace.chunk_elements.value_or(options.chunk_elements);
  options.operations_per_second = static_cast<double>(parse_count(flags_.operations, "--operations"));
  if (options.operations_per_second == 0) refuse("--operations", "it is 0", "give for example 10000G");
  Workers workers(1);
  SimSchedule schedule = training_schedule(*model, config, run_dry(*model, config, workers), options);
  schedule.name = model_.model + ", " + schedule.name;
  // The items on nvme are in the lowest tier of the machine.
  for (SimItem& item : schedule.items) {
    if (item.home_tier > 1) item.home_tier = std::max(item.home_tier, lowest_of(machine));
  }
  return schedule;
}

SimSchedule Sim::schedule(const SimMachine& machine) {
  if (flags_.trace.empty() == model_.model.empty()) {
    refuse(flags_.trace.empty() ? "no schedule" : flags_.trace + " and --model together",
           "one of the two says what to replay", "name a file, or give --model NAME");
  }
  if (flags_.trace.empty()) return schedule_of_model(machine);
  require_exists("the schedule", flags_.trace);
  return read_schedule(flags_.trace);
}

std::vector<SimPolicy> Sim::policies() const {
  std::vector<SimPolicy> chosen;
  for (const std::string& name : flags_.policies) {
    const std::optional<SimPolicy> policy = sim_policy_from_name(name);
    if (policy) {
      if (std::find(chosen.begin(), chosen.end(), *policy) == chosen.end()) chosen.push_back(*policy);
      continue;
    }
    if (name != "all")
      refuse("--policy " + name, "there is no such policy",
             "give opt, lru, fifo, mru, gemini, patrickstar or all");
    return {sim_policies().begin(), sim_policies().end()};
  }
  if (chosen.empty()) return {sim_policies().begin(), sim_policies().end()};
  return chosen;
}

int Sim::run() {
  SimReport report;
  report.policies = policies();
  report.machine = sim_machine(flags_.machine);
  const SimSchedule given = schedule(report.machine);
  report.schedule = given;
  // A host without a bound is the lowest tier.
  for (SimItem& item : report.schedule.items)
    item.home_tier = std::min(item.home_tier, lowest_of(report.machine));
  check_simulation(report.schedule, report.machine);
  if (!flags_.write_schedule.empty()) write_schedule(flags_.write_schedule, given);
  return print_measurement(console_, [&] {
    for (uint32_t link = 0; link < report.machine.links.size(); ++link) {
      step(fmt::format("the least between {} and {}", report.machine.tiers[link].name,
                       report.machine.tiers[link + 1].name));
      report.bounds.push_back(lower_bound(report.schedule, report.machine, link));
    }
    for (const SimPolicy policy : report.policies) {
      step(fmt::format("policy {}", name_of(policy)));
      report.results.push_back(simulate(report.schedule, report.machine, policy));
    }
    return flags_.json ? sim_json(report) : sim_text(report);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_sim(Command& app) {
  return std::make_unique<Sim>(app);
}

}  // namespace terrace
