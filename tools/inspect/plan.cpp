// `terrace plan`: predicts what `terrace train` with the same flags holds, moves and takes, or says what
// would fit if it does not. It leaves no file and takes no more memory than one layer needs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <tuple>

#include <terrace/base/topology.h>
#include <terrace/base/units.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/reference/planning/chunk_size.h>
#include <terrace/reference/planning/disk_rates.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/settle.h>
#include <terrace/reference/planning/ways_out.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/schema/config_file.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/tuning/tuning.h>
#include <terrace/runtime/ranks/host_share.h>

#include "command_line.h"
#include "console.h"
#include "flags/compute_choice.h"
#include "flags/data_flags.h"
#include "flags/model_choice.h"
#include "flags/shown_configuration.h"
#include "flags/train_flags.h"
#include "inspect/plan_placement.h"
#include "inspect/plan_report.h"
#include "inspect/plan_stages.h"
#include "inspect/rank_flags.h"
#include "inspect/rank_outlook.h"
#include "inspect/stage_flags.h"
#include "measure/tune_measure.h"
#include "train/drive_wear.h"
#include "train/planning_watch.h"

namespace terrace {
namespace {

// The plan before it reads like one of the machine that was named.
Error too_small(const std::vector<TierShortage>& missing) {
  std::string lacks;
  for (const TierShortage& tier : missing)
    lacks += fmt::format("{}{} has {} and {} are needed", lacks.empty() ? "" : "; ", tier.tier,
                         format_bytes(tier.budget_bytes), format_bytes(tier.needed_bytes));
  return Error(
      ErrorKind::capacity,
      {"cannot train on", "the machine that is described", std::move(lacks),
       "give more of it, or plan with fewer bytes a value; the plan above is of a machine that has it"});
}

constexpr const char* kGroup = "The plan";
// Without --steps, drives are said to wear out if a run of so many steps wears them out.
constexpr uint64_t kCommonSteps = 10'000;
// The nvme path of a machine that is not this one, as DeepSpeed's pages have it.
constexpr const char* kDrivesElsewhere = "/local_nvme";
constexpr ReferenceMachine kMachineElsewhere = {.threads = 16, .has_gpu = true};
constexpr const char* kPlanExamples =
    "Every flag of `terrace train` means the same here; without --data, the vocabulary is the model's "
    "own.\n\n"
    "Examples:\n"
    "  terrace plan --config ds_config.json --model gpt2-xl --device-memory 2GiB --host-memory 8GiB\n"
    "  terrace plan --config ds_config.json --model gpt2-xl --nvme-path /mnt/nvme --endurance 600TBW "
    "--best\n"
    "  terrace plan --config ds_config.json --model llama-3.1-70b --device-memory 24GiB --host-memory 64GiB "
    "--disk 2TiB\n";

std::string rates_text(const MachineRates& rates) {
  if (rates.disk_mixed_bytes == 0) return "";
  return fmt::format("nvme {:.2f} GB/s read, {:.2f} written, {:.2f} mixed ({})", rates.disk_read_bytes * 1e-9,
                     rates.disk_write_bytes * 1e-9, rates.disk_mixed_bytes * 1e-9, rates.disk_origin);
}

class Plan final : public Subcommand {
 public:
  explicit Plan(Command& app)
      : Subcommand(app, "plan",
                   "Say what a training run will hold, move and take, before anything is allocated") {
    flags_.add_to(command_);
    add_own_flags(command_);
    command_.footer(kPlanExamples);
  }
  int run() override;

 private:
  void add_own_flags(Command& command);
  // `missing` is what the machine of --disk lacks.
  int plan(const TrainerOptions& options, Workers& workers, std::vector<TierShortage> missing = {});
  void require_values();
  // What the ranks of a host share.
  void take_ranks(TrainConfig& config) const;
  // Plans for another machine: budgets that are too small are raised to the least that do, and said.
  // Stages of pipelines in the place of a run.
  int plan_in_stages(const TrainerOptions& options, Workers& workers);
  void require_sense(const TrainConfig& config) const;
  int plan_elsewhere(TrainerOptions options, Workers& workers);
  bool is_elsewhere() const { return disk_bytes_ > 0; }
  std::optional<ReferenceMachine> elsewhere(const TrainConfig& config) const;
  int refuse_run(const TrainerOptions& options, Workers& workers, const ShortageError& reason);
  // Returns nothing if no times are wanted or something cannot be measured; unmeasured_ then says why.
  std::optional<MeasuredMachine> measure(const TrainConfig& config, const TrainingSetup& setup,
                                         Workers& workers);
  std::vector<std::filesystem::path> nvme_paths(const TrainConfig& config) const;
  bool are_disks_named() const;
  void take_named_rates(MachineRates& rates) const;
  // Measures each path for a second for --best, if the rates are not known.
  void measure_disks(const TrainConfig& config, MachineRates& rates);
  // Plans every placement. It measures the machine if that has not been done and times are wanted.
  std::vector<Split> splits(const TrainerOptions& options, Workers& workers,
                            std::optional<MeasuredMachine>& machine);

  TrainFlags flags_;
  std::string endurance_, disk_, disk_read_, disk_write_, disk_mixed_;
  uint64_t disk_bytes_ = 0;  // of another machine; 0: the plan is for this one
  RankFlags ranks_;
  StageFlags stages_;
  double endurance_terabytes_ = 0;  // 0: not given
  bool best_ = false;
  bool no_time_ = false;
  std::string config_file_;  // of a placement that was chosen here
  std::string unmeasured_;
  std::string rates_text_;  // the rates with which times were computed
  Console console_;
};

void Plan::add_own_flags(Command& command) {
  const FlagGroup group(command, kGroup);
  group.text("--endurance", "TBW", endurance_, "What may be written to the drives, as rated: 600TBW, 1.2PB");
  group.text(
      "--disk", "SIZE", disk_,
      "The room on the drives of another machine: the plan looks at no folder, needs no --nvme-path, and "
      "says "
      "what the machine lacks instead of refusing");
  group.text(
      "--disk-read", "SIZE", disk_read_,
      "Bytes that the nvme paths read in a second, together; without it, what `terrace tune` remembers");
  group.text("--disk-write", "SIZE", disk_write_, "Bytes that they write in a second");
  group.text("--disk-mixed", "SIZE", disk_mixed_, "Bytes that they read and write in a second, half of each");
  ranks_.add_to(command);
  stages_.add_to(command);
  group.yes("--best", best_, "Try every placement within the budgets, and say which is the fastest");
  group.yes("--no-time", no_time_, "Say nothing of time, and measure nothing for it");
}

// Parses "600TBW", "600TB" or "1.2PB".
double parse_terabytes(std::string text) {
  const std::string given = text;
  if (text.ends_with("W")) text.pop_back();
  double unit = 0;
  if (text.ends_with("TB")) unit = 1;
  if (text.ends_with("PB")) unit = 1000;
  double number = 0;
  const char* const end = text.data() + std::max<size_t>(text.size(), 2) - 2;
  const auto [parsed, problem] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (unit == 0 || problem != std::errc() || parsed != end || !(number > 0) || !std::isfinite(number))
    refuse("--endurance " + given, "it is no number of TB or PB",
           "give what the drive is rated for, for example 600TBW");
  return number * unit;
}

// A folder that does not exist yet may be planned with.
void require_no_files(const std::vector<std::filesystem::path>& nvme_paths) {
  for (const std::filesystem::path& path : nvme_paths) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_directory(status))
      throw Error(ErrorKind::config, {"cannot use the nvme path", path.string(), system_reason(ENOTDIR),
                                      "name a folder on a fast local disk with --nvme-path"});
  }
}

// Returns the paths of the tier if anything is on nvme; else those that --best tries.
std::vector<std::filesystem::path> Plan::nvme_paths(const TrainConfig& config) const {
  std::vector<std::filesystem::path> paths = tier_paths(config.placement);
  if (paths.empty() && best_) paths.assign(flags_.nvme_paths.begin(), flags_.nvme_paths.end());
  return paths;
}

void Plan::take_named_rates(MachineRates& rates) const {
  const auto take = [&](const char* flag, const std::string& text, double& rate) {
    if (text.empty()) return;
    rate = static_cast<double>(parse_bytes(text, flag));
    if (rate == 0)
      refuse(flag + (" " + text), "at this rate nothing arrives",
             "give the bytes of a second, for example 2GB");
    rates.disk_origin += (rates.disk_origin.empty() ? "" : ", ") + std::string(flag);
  };
  take("--disk-read", disk_read_, rates.disk_read_bytes);
  take("--disk-write", disk_write_, rates.disk_write_bytes);
  take("--disk-mixed", disk_mixed_, rates.disk_mixed_bytes);
  ranks_.take_links(rates);
}

bool Plan::are_disks_named() const {
  return !disk_read_.empty() && !disk_write_.empty() && !disk_mixed_.empty();
}

void Plan::measure_disks(const TrainConfig& config, MachineRates& rates) {
  constexpr uint64_t kLargestFile = 256 * kMiB;
  constexpr uint64_t kShareOfFree = 16;
  constexpr uint64_t kPartNs = 250'000'000;
  const std::vector<std::filesystem::path> paths = nvme_paths(config);
  if (rates.disk_mixed_bytes > 0 || are_disks_named() || paths.empty()) return;
  const io::EngineOptions engine = {.kind = io::choose_engine(config.terrace.engine).kind};
  MachineRates sum;
  try {
    for (const std::filesystem::path& path : paths) {
      const uint64_t bytes = std::min(io::free_bytes_at(path) / kShareOfFree, kLargestFile);
      TuneMeasure measure(path, std::max(bytes, TuneMeasure::least_bytes()), console_);
      measure.fill(engine, kPartNs);
      sum.disk_read_bytes += measure.rate(io::StreamKind::read, engine, kPartNs);
      sum.disk_write_bytes += measure.rate(io::StreamKind::write, engine, kPartNs);
      sum.disk_mixed_bytes += measure.rate(io::StreamKind::update, engine, kPartNs);
    }
  } catch (const Error& error) {
    console_.warning(fmt::format(
        "the nvme paths cannot be measured, so placements there are compared by the bytes that they move: {}",
        error.in(Door::program)));
    return;
  }
  rates.disk_read_bytes = sum.disk_read_bytes;
  rates.disk_write_bytes = sum.disk_write_bytes;
  rates.disk_mixed_bytes = sum.disk_mixed_bytes;
  rates.disk_origin = "measured for a second; `terrace tune` takes longer and remembers";
}

std::optional<MeasuredMachine> Plan::measure(const TrainConfig& config, const TrainingSetup& setup,
                                             Workers& workers) {
  if (no_time_ || !unmeasured_.empty()) return std::nullopt;
  if (const std::optional<ReferenceMachine> other = elsewhere(config)) {
    MeasuredMachine machine = assume_machine(config, setup, *other, ranks_.flops());
    if (are_disks_named()) machine.rates.disk_origin.clear();
    take_named_rates(machine.rates);
    rates_text_ = rates_text(machine.rates);
    return machine;
  }
  try {
    MeasuredMachine machine = measure_machine(config, setup, workers, {.given_flops = ranks_.flops()});
    // This process measures alone what the ranks of a host do side by side.
    const auto processors = static_cast<double>(read_topology().default_thread_count());
    const double wanted =
        ranks_.ranks_per_host() * std::min(static_cast<double>(workers.thread_count()), processors);
    if (wanted > processors) machine.divide_processors(processors / wanted);
    take_tuned_rates(tuning_folder(), nvme_paths(config), machine.rates);
    if (best_) measure_disks(config, machine.rates);
    take_named_rates(machine.rates);
    rates_text_ = rates_text(machine.rates);
    return machine;
  } catch (const Error& error) {
    unmeasured_ = error.in(Door::program);
    return std::nullopt;
  }
}

// With the threads that are given, else those of a common machine.
std::optional<ReferenceMachine> Plan::elsewhere(const TrainConfig& config) const {
  if (!is_elsewhere()) return std::nullopt;
  ReferenceMachine machine = kMachineElsewhere;
  if (config.terrace.thread_count > 0) machine.threads = config.terrace.thread_count;
  return machine;
}

int Plan::run() {
  if (wants_configuration(flags_)) return show_configuration(flags_, console_);
  require_values();
  stages_.take_ranks(flags_);
  std::optional<DataChoice> data;
  if (!flags_.data.paths.empty()) data.emplace(flags_.data, model_folder(flags_));
  const std::optional<uint32_t> vocabulary = data ? data->vocabulary() : std::nullopt;
  TrainerOptions options = resolve_training(flags_, vocabulary);
  if (data) require_training_data(flags_, *data, options);
  require_sense(options.config);
  if (flags_.epochs > 0) console_.warning("--epochs has no effect: what is planned is a step");
  const ComputeChoice compute(options.config, console_);
  Workers workers = make_compute_threads(options.config.terrace);
  if (is_elsewhere() && !stages_.are_given() && leaves_placement_open(options.config)) {
    const PlacementSearch search{vocabulary, compute.device(), disk_bytes_};
    console_.info(choose_placement(search, workers, flags_));
    options = resolve_training(flags_, vocabulary);
    config_file_ = config_file_json(options.config);
  }
  take_ranks(options.config);
  for (const std::string& warning : options.config.warnings) {
    if ((!best_ && !is_elsewhere()) || !warning.starts_with("--nvme-path has no effect"))
      console_.warning(warning);
  }
  if (!is_elsewhere()) require_no_files(nvme_paths(options.config));
  options.compute = compute.device();
  options.config = compute.settle(options.config, console_);
  if (stages_.are_given()) return plan_in_stages(options, workers);
  try {
    return is_elsewhere() ? plan_elsewhere(options, workers) : plan(options, workers);
  } catch (const ShortageError& shortage) {
    return refuse_run(options, workers, shortage);
  }
}

// Wrong values are refused before anything is measured.
void Plan::require_values() {
  if (!endurance_.empty()) endurance_terabytes_ = parse_terabytes(endurance_);
  if (!disk_.empty()) {
    disk_bytes_ = parse_bytes(disk_, "--disk");
    if (disk_bytes_ == 0)
      refuse("--disk " + disk_, "a drive has room", "give the bytes of its drives, for example 2TiB");
    flags_.nvme_paths = {kDrivesElsewhere};  // no folder of this machine is meant
  }
  MachineRates named;
  take_named_rates(named);
  ranks_.require_values();
}

void Plan::take_ranks(TrainConfig& config) const {
  share_host(config, ranks_.ranks_per_host());
  BatchConfig& batch = config.batch;
  if (batch.ranks % ranks_.ranks_per_host() == 0) batch.hosts = batch.ranks / ranks_.ranks_per_host();
  if (!batch.gradient_group) batch.gradient_group = batch.new_gradient_group();
  take_paths_of({.ranks_on_host = ranks_.ranks_per_host(), .host = own_place().host_name},
                config.terrace.nvme_share, config.placement);
}

void Plan::require_sense(const TrainConfig& config) const {
  const uint32_t stages = std::max(stages_.stages(), 1u);
  ranks_.require_sense(config.batch.ranks * stages, !no_time_);
  if (!stages_.are_given()) return;
  const char* const flag = stages_.compares() ? "--best-stages" : "--stages";
  if (stages_.compares() && config.batch.ranks == 1)
    refuse(flag, "one rank is nothing to divide", "say with --ranks how many there are");
  if (best_) refuse("--best", std::string(flag) + " is a plan of other things", "leave one of the two out");
  if (ranks_.jitter() > 0 || ranks_.mtbf_seconds() > 0)
    refuse(ranks_.jitter() > 0 ? "--jitter" : "--mtbf",
           std::string("a plan with ") + flag + " has no such time", "leave it out, or plan without stages");
  if (is_elsewhere() && leaves_placement_open(config))
    refuse(flag, "nothing says where parameters and states of a stage are",
           "give --offload-param and --offload-optimizer");
}

int Plan::plan_in_stages(const TrainerOptions& options, Workers& workers) {
  const auto machine = [&](const TrainConfig& config, const TrainingSetup& setup) {
    return measure(config, setup, workers);
  };
  const StagesQuestion question{options, workers, elsewhere(options.config), ranks_.ranks_per_host(),
                                machine};
  const auto no_times = [&] { return unmeasured_.empty() ? "" : "not known: " + unmeasured_; };
  if (stages_.compares()) {
    StagesComparison comparison = compare_stages(question);
    comparison.no_times = no_times();
    print_result(flags_.json ? comparison_json(comparison) : comparison_text(comparison));
    return kDone;
  }
  StagesReport report = plan_stages(question, stages_.stages());
  report.no_times = no_times();
  print_result(flags_.json ? stages_json(report) : stages_text(report));
  return kDone;
}

int Plan::plan_elsewhere(TrainerOptions options, Workers& workers) {
  constexpr int kMostTries = 4;  // the device, then the host beside it, and once more each
  std::vector<TierShortage> missing;
  for (int tries = 1;; ++tries) {
    try {
      return plan(options, workers, missing);
    } catch (const ShortageError& shortage) {
      if (tries == kMostTries) throw;
      for (const TierShortage& tier : shortage.tiers()) {
        TerraceConfig& config = options.config.terrace;
        (tier.tier == "device" ? config.device_memory_bytes : config.host_memory_bytes) = tier.needed_bytes;
        const auto known = std::ranges::find(missing, tier.tier, &TierShortage::tier);
        if (known == missing.end()) {
          missing.push_back(tier);
        } else {
          known->needed_bytes = tier.needed_bytes;
        }
      }
    }
  }
}

int Plan::plan(const TrainerOptions& options, Workers& workers, std::vector<TierShortage> missing) {
  const TrainConfig& config = options.config;
  std::optional<PlanningWatch> watch(std::in_place, console_);
  const TrainingSetup setup = set_up_with_fastest_chunks(config, options.model, workers, options.compute,
                                                         &watch->progress(), elsewhere(config));
  const std::string sides = update_sides_text(config, setup);
  if (!sides.empty()) console_.info(sides);
  const uint64_t on_disk = setup.plan.memory.file_bytes();
  if (!is_elsewhere()) require_disk_room(setup.plan.memory, setup.offload);
  if (is_elsewhere() && on_disk > disk_bytes_) missing.push_back({"nvme", disk_bytes_, on_disk});
  std::optional<MeasuredMachine> machine = measure(config, setup, workers);
  const PlanPrediction prediction = predict_run(config, setup, workers, machine ? &*machine : nullptr);
  watch.reset();
  PlanReport report;
  report.missing = std::move(missing);
  report.disk_bytes = disk_bytes_;
  report.steps = options.steps;
  report.tokens_per_step = uint64_t{config.batch.train_batch_size()} * options.model.context;
  report.model = setup.model->description();
  report.plan = setup.plan;
  report.prediction = prediction;
  if (machine) report.operations = machine->operations.description();
  report.ranks = config.batch.ranks;
  report.ranks_per_host = ranks_.ranks_per_host();
  report.network_is_unknown = machine && !knows_ranks(machine->rates, config);
  if (prediction.has_times) report.outlook = look_at_ranks(config, setup, prediction, machine->rates, ranks_);
  if (machine && !prediction.has_times)
    report.no_times =
        "not known, because the rates of the nvme paths are not: `terrace tune` measures them, "
        "or give --disk-read, --disk-write and --disk-mixed";
  if (!unmeasured_.empty()) report.no_times = "not known: " + unmeasured_;
  report.endurance_terabytes = endurance_terabytes_;
  report.writes = drive_writes(config, prediction, endurance_terabytes_);
  const std::string wear =
      wear_warning(report.writes, setup.plan.disk, flags_.steps_are_given ? options.steps : kCommonSteps);
  if (endurance_terabytes_ == 0 && !wear.empty())
    console_.warning(wear + " (--endurance says what they are rated for)");
  if (best_) report.splits = splits(options, workers, machine);
  report.rates = rates_text_;
  report.config_file = config_file_;
  print_result(flags_.json ? plan_json(report) : plan_text(report));
  if (report.missing.empty()) return kDone;
  print_error(too_small(report.missing));
  return kUsage;
}

std::vector<Split> Plan::splits(const TrainerOptions& options, Workers& workers,
                                std::optional<MeasuredMachine>& machine) {
  constexpr std::array kPlaces = {Placement::none, Placement::cpu, Placement::nvme};
  const std::vector<std::filesystem::path> paths = nvme_paths(options.config);
  std::vector<Split> splits;
  for (const Placement parameters : kPlaces) {
    for (const Placement states : kPlaces) {
      TrainConfig config = options.config;
      PlacementConfig& placement = config.placement;
      if (paths.empty() && (parameters == Placement::nvme || states == Placement::nvme)) continue;
      placement.parameters = parameters;
      placement.states = states;
      if (parameters == Placement::nvme && placement.parameter_paths.empty())
        placement.parameter_paths = paths;
      if (states == Placement::nvme && placement.state_paths.empty()) placement.state_paths = paths;
      Split split{
          fmt::format("--offload-param {} --offload-optimizer {}", name_of(parameters), name_of(states)),
          "",
          {}};
      std::optional<TrainingSetup> setup;
      try {
        PlanningWatch watch(console_);
        setup.emplace(set_up_with_fastest_chunks(config, options.model, workers, options.compute,
                                                 &watch.progress(), elsewhere(config)));
        if (!is_elsewhere()) require_disk_room(setup->plan.memory, setup->offload);
      } catch (const Error& error) {
        split.refusal = error.in(Door::program);
      }
      if (split.refusal.empty()) {
        if (!machine) machine = measure(options.config, *setup, workers);
        split.prediction = predict_run(config, *setup, workers, machine ? &*machine : nullptr);
      }
      splits.push_back(std::move(split));
    }
  }
  const auto order = [](const Split& split) {
    const OffloadCounters& moved = split.prediction.step;
    const uint64_t on_nvme = moved.param_read_bytes + moved.record_read_bytes + moved.gradient_read_bytes +
                             moved.param_write_bytes + moved.record_write_bytes + moved.gradient_write_bytes;
    return std::tuple(!split.refusal.empty(), !split.prediction.has_times, split.prediction.step_seconds,
                      on_nvme, moved.h2d_bytes + moved.d2h_bytes);
  };
  std::ranges::stable_sort(splits, {}, order);
  return splits;
}

// The exit status is 2, as for every capacity that is known in advance.
int Plan::refuse_run(const TrainerOptions& options, Workers& workers, const ShortageError& reason) {
  const std::vector<WayOut> ways = find_ways_out(reason, options.config, options.model, workers,
                                                 options.compute, probe_machine().memory_limit.bytes);
  std::optional<MeasuredMachine> machine;
  const std::vector<Split> others = best_ ? splits(options, workers, machine) : std::vector<Split>();
  if (flags_.json)
    print_result(shortage_json(reason, ways, others));
  else if (!others.empty())
    print_result(splits_text(others, rates_text_));
  print_error(with_ways_out(reason, ways));
  return kUsage;
}

}  // namespace

std::unique_ptr<Subcommand> add_plan(Command& app) {
  return std::make_unique<Plan>(app);
}

}  // namespace terrace
