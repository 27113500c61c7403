// `terrace bench adam`: how close the optimizers' kernels come to this machine's memory bandwidth. The
// measure is their share of the bandwidth that the best simple in-place kernel reaches with the same threads
// in the same round.
#include <fmt/format.h>

#include <string>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>

#include "command_line.h"
#include "console.h"
#include "measure/bench_adam_report.h"
#include "measure/bench_adam_run.h"
#include "measure/bench_optimizer.h"

namespace terrace {
namespace {

constexpr const char* kAdamExamples =
    "Examples:\n"
    "  terrace bench adam --parameters 128M --threads 1 --threads 2\n"
    "  terrace bench adam --optimizer lion --state-type bf16 --compact-state --instruction-set avx2 \\\n"
    "      --instruction-set avx512 --json\n";
constexpr const char* kAdamWhat = "The update";
constexpr const char* kAdamHow = "How it is measured";
constexpr uint64_t kMostParameters = uint64_t{1} << 36;

struct AdamFlags {
  std::string parameters = "128M";
  BenchOptimizer optimizer;
  std::string gradient_type = "bf16", parameter_type = "bf16", state_type = "fp32";
  std::vector<std::string> threads, sets;
  uint64_t rounds = 7;
  bool compact = false, json = false;
};

DataType type_from(const std::string& flag, const std::string& name) {
  for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (name == name_of(type)) return type;
  }
  refuse(flag + " " + name, "there is no such type", "give fp32, bf16 or fp16");
}

class BenchAdam final : public Subcommand {
 public:
  explicit BenchAdam(Command& bench);
  const std::string& name() const override { return name_; }
  int run() override;

 private:
  void add_update_flags(Command& command);
  void add_measure_flags(Command& command);
  AdamPlan plan() const;
  void plan_types(AdamPlan& plan) const;
  void plan_machine(AdamPlan& plan) const;

  const std::string name_ = "adam";
  AdamFlags flags_;
  Console console_;
};

BenchAdam::BenchAdam(Command& bench) {
  Command command =
      bench.add_subcommand(name_, "Measure the optimizers' kernels beside the memory's bandwidth");
  add_update_flags(command);
  add_measure_flags(command);
  command.footer(kAdamExamples);
}

void BenchAdam::add_update_flags(Command& command) {
  command.add_option("--parameters,--elements", flags_.parameters, "How many, in whole tiles (default 128M)")
      .type_name("N")
      .group(kAdamWhat);
  flags_.optimizer.add_flags(command, kAdamWhat);
  command.add_option("--gradient-type", flags_.gradient_type, "Of gradients (default bf16)")
      .type_name("fp32|bf16|fp16")
      .group(kAdamWhat);
  command
      .add_option(
          "--parameter-type", flags_.parameter_type,
          "Of parameters (default bf16): where it is as wide as the gradients', they are written over them")
      .type_name("fp32|bf16|fp16")
      .group(kAdamWhat);
  command.add_option("--state-type", flags_.state_type, "Of moments (default fp32)")
      .type_name("fp32|bf16")
      .group(kAdamWhat);
  command.add_flag("--compact-state", flags_.compact, "Masters as bf16 parameters and remainders")
      .group(kAdamWhat);
}

void BenchAdam::add_measure_flags(Command& command) {
  add_repeated(command, "--threads", flags_.threads, "N",
               "Compute threads; may be given several times (default: one per core)", kAdamHow);
  add_repeated(command, "--instruction-set", flags_.sets, "NAME",
               "scalar, avx2 or avx512; may be given several times (default: the best)", kAdamHow);
  add_whole_number(
      command, "--rounds", 1, [this](uint64_t value) { flags_.rounds = value; },
      "Rounds, each of which measures everything once (default 7)", kAdamHow);
  command.add_flag("--json", flags_.json, "Print the result as JSON").group(kAdamHow);
}

void BenchAdam::plan_types(AdamPlan& plan) const {
  plan.gradient_type = type_from("--gradient-type", flags_.gradient_type);
  plan.parameter_type = type_from("--parameter-type", flags_.parameter_type);
  const DataType state = type_from("--state-type", flags_.state_type);
  if (state == DataType::fp16) refuse("--state-type fp16", "moments do not fit into it", "give fp32 or bf16");
  if (flags_.compact && plan.parameter_type != DataType::bf16)
    refuse("--compact-state", "parameters are in " + flags_.parameter_type, "give --parameter-type bf16");
  plan.layout = {flags_.compact ? MasterForm::remainder : MasterForm::whole,
                 moment_count(plan.settings.kind, plan.settings.momentum), state};
  const uint64_t wanted = parse_count(flags_.parameters, "--parameters");
  if (wanted == 0 || wanted > kMostParameters)
    refuse("--parameters " + flags_.parameters, "it is 0, or more than 2^36", "give for example 128M");
  plan.elements = round_up(wanted, kTileElements);
}

void BenchAdam::plan_machine(AdamPlan& plan) const {
  constexpr uint64_t kMostThreads = 4096;
  const Machine machine = probe_machine();
  for (const std::string& text : flags_.threads) {
    const uint64_t threads = parse_count(text, "--threads");
    if (threads == 0 || threads > kMostThreads) refuse("--threads " + text, "it is 0, or more than 4096", "");
    plan.threads.push_back(threads);
  }
  if (plan.threads.empty()) plan.threads.push_back(machine.cores.size());
  for (const std::string& text : flags_.sets) plan.sets.push_back(instruction_set_from_name(text));
  if (plan.sets.empty()) plan.sets.push_back(best_instruction_set());
  plan.rounds = flags_.rounds;
  if (plan.memory_bytes() > machine.memory_limit.bytes) {
    throw Error(ErrorKind::capacity,
                {"cannot measure", fmt::format("{} parameters", plan.elements),
                 fmt::format("they need {}; there are {} ({})", format_bytes(plan.memory_bytes()),
                             format_bytes(machine.memory_limit.bytes), machine.memory_limit.origin),
                 "give fewer --parameters"});
  }
}

AdamPlan BenchAdam::plan() const {
  AdamPlan plan;
  plan.optimizer = flags_.optimizer.name;
  plan.settings = flags_.optimizer.settings();
  plan_types(plan);
  plan_machine(plan);
  return plan;
}

int BenchAdam::run() {
  const AdamPlan chosen = plan();
  return print_measurement(console_, [&] {
    const std::vector<AdamThreads> results = measure_adam(chosen, console_);
    return flags_.json ? adam_report_json(chosen, results) : adam_report_text(chosen, results);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_bench_adam(Command& bench) {
  return std::make_unique<BenchAdam>(bench);
}

}  // namespace terrace
