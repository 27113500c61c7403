// `terrace train`: resolves and checks all flags, says what is going to happen, lets TrainingRun train, and
// reports.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/step_log.h>
#include <terrace/runtime/observe/monitor/run_monitor.h>
#include <terrace/runtime/observe/trace/schedule_file.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace/runtime/train/planning/settle.h>
#include <terrace/runtime/train/planning/ways_out.h>

#include "command_line.h"
#include "console.h"
#include "flags/compute_choice.h"
#include "flags/model_choice.h"
#include "flags/output_files.h"
#include "flags/train_flags.h"
#include "inspect/plan_report.h"
#include "train/drive_wear.h"
#include "train/passed_sets.h"
#include "train/planning_watch.h"
#include "train/run_report.h"
#include "train/run_saves.h"
#include "train/step_progress.h"
#include "train/step_recording.h"
#include "train/stop_signals.h"
#include "train/train_decisions.h"
#include "train/train_facts.h"
#include "train/train_faults.h"
#include "train/train_header.h"
#include "train/train_prediction.h"
#include "train/train_ranks.h"
#include "train/train_resume.h"
#include "train/train_run.h"
#include "train/train_summary.h"

namespace terrace {
namespace {

class Train final : public Subcommand {
 public:
  explicit Train(Command& app) {
    Command command = app.add_subcommand(
        name_, "Train a model on text or tokens, within budgets of device and host memory");
    flags_.add_to(command);
  }

  const std::string& name() const override { return name_; }
  int run() override {
    if (flags_.explain.empty() && !flags_.print_config) return train();
    RankConsole program(console_);
    const RunRanks ranks(own_environment(), program);
    take_part(ranks.identity(), flags_, console_);
    if (!ranks.is_first()) return kDone;
    return flags_.explain.empty() ? print_config() : explain();
  }

 private:
  TrainConfig settled(const TrainConfig& config) {
    return ComputeChoice(config, console_).settle(config, flags_.replay_decisions, console_);
  }
  int explain() {
    print_result(config_explanation(settled(resolve_config(flags_)), flags_.explain));
    return kDone;
  }
  int print_config() {
    const TrainConfig config = resolve_config(flags_);
    for (const std::string& warning : config.warnings) console_.warning(warning);
    choose_model(flags_);  // an unknown model is refused here too
    const TrainConfig in_force = settled(config);
    print_result(flags_.json ? config_json(in_force) : config_table(in_force));
    return kDone;
  }

  int train();
  int train(const RunRanks& ranks, RunReport& report);
  void record_schedule(const Trainer& trainer);
  std::unique_ptr<WatchdogThread> start_watchdog(Trainer& trainer, const RunRanks& ranks);
  std::unique_ptr<JobControl> start_control(Trainer& trainer, const StepShape& shape, StopSignals& signals,
                                            const RunRanks& ranks);

  const std::string name_ = "train";
  TrainFlags flags_;
  Console console_;
};

// Returns null if it is turned off.
std::unique_ptr<WatchdogThread> Train::start_watchdog(Trainer& trainer, const RunRanks& ranks) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  constexpr uint64_t kNeverNs = UINT64_MAX;
  const auto in_ns = [](uint64_t seconds) {
    return seconds > kNeverNs / kSecondNs ? kNeverNs : seconds * kSecondNs;
  };
  if (flags_.stall_warning_seconds == 0 && flags_.stall_abort_seconds == 0) return nullptr;
  WatchdogOptions options{
      .warn_after_ns = flags_.stall_warning_seconds == 0 ? kNeverNs : in_ns(flags_.stall_warning_seconds),
      .abort_after_ns = in_ns(flags_.stall_abort_seconds)};
  options.others = [&others = ranks.watch()] { return others.who_is_where(); };
  // The step thread cannot be interrupted in a wait, so nothing can be saved or cleaned up.
  const auto abort = [this, &others = ranks.watch()] {
    const std::string reason = "one wait took longer than --stall-abort allows";
    console_.end_progress();
    print_error(
        Error(ErrorKind::io, {"training was given up", "", reason,
                              "look at the disk, the link or the rank that is named above, then go on with "
                              "--resume auto"}));
    others.give_up(reason);
    std::_Exit(kFailed);
  };
  return std::make_unique<WatchdogThread>(trainer.offloader().report().watch(), options, console_, abort);
}

// Returns null if it is turned off.
std::unique_ptr<JobControl> Train::start_control(Trainer& trainer, const StepShape& shape,
                                                 StopSignals& signals, const RunRanks& ranks) {
  if (flags_.no_control) return nullptr;
  JobControlOptions options;
  options.steps = flags_.steps;
  options.shape = shape;
  options.stop = [&signals] { signals.request(); };
  options.ranks = [&others = ranks.watch()](JobStatus& status) { others.describe(status); };
  return std::make_unique<JobControl>(
      JobSubject{{trainer.offloader(), trainer.device(), trainer.plan().device.bytes},
                 trainer.model_description(),
                 trainer.completed_steps(),
                 trainer.update_mode(),
                 trainer.durable_step()},
      options, console_);
}

void Train::record_schedule(const Trainer& trainer) {
  if (flags_.record_schedule.empty()) return;
  try {
    write_schedule(flags_.record_schedule, trainer.recorded_schedule());
  } catch (const Error& unwritten) {
    console_.warning(unwritten.what());  // training is as good without the schedule
  }
}

// Returns the tokenizer that an export of the model needs; empty if the model has none.
std::string tokenizer_of(const TrainFlags& flags) {
  if (!flags.data.tokenizer.empty()) return flags.data.tokenizer;
  const std::filesystem::path folder = model_folder(flags);
  return !folder.empty() && std::filesystem::exists(folder / "tokenizer.json") ? flags.model : "";
}

// A run that writes less than this part of what common drives are rated for is not warned of.
constexpr double kLeastWear = 0.01;

void warn_of_wear(const TrainerOptions& options, const PlanPrediction& prediction,
                  std::span<const PathShare> disk, Log& log) {
  const std::string wear =
      wear_warning(drive_writes(options.config, prediction, 0), disk, options.steps, kLeastWear);
  if (!wear.empty()) log.warning(wear);
}

// The error of a run that does not fit says how it would fit.
TrainingSetup plan_or_refuse(const TrainerOptions& options, Log& log) {
  try {
    PlanningWatch watch(log);
    TrainingSetup setup = plan_training(options, &watch.progress());
    if (options.tier_start == TierStart::resume) return setup;
    OffloadOptions offload = setup.offload;
    offload.tier_name = options.config.placement.tier_name;
    const uint32_t host = options.communicator != nullptr
                              ? options.communicator->places()[options.communicator->rank()].host
                              : 0;
    const DiskNeed need = disk_need(setup.plan.memory, offload, host);
    require_disk_room(setup.plan.memory, offload, need, RankVotes(options.communicator).of_all(need));
    return setup;
  } catch (const ShortageError& reason) {
    if (options.tier_start == TierStart::resume) throw;
    const TierShortage& first = reason.tiers().front();
    if (options.communicator != nullptr && first.tier == "nvme") {
      ErrorParts parts = reason.parts();
      parts.advice = fmt::format(
          "free {} there, or give the ranks folders on several drives: {{rank}} in nvme_path, or a list",
          format_bytes(first.missing_bytes()));
      throw Error(reason.kind(), parts);
    }
    Workers workers = make_compute_threads(options.config.terrace);
    throw with_ways_out(reason, find_ways_out(reason, options.config, options.model, workers, options.compute,
                                              {probe_machine().memory_limit.bytes}));
  }
}

int Train::train() {
  RankConsole program(console_);
  RunRanks ranks(own_environment(), program);
  take_part(ranks.identity(), flags_, console_);
  std::optional<RunReport> report;
  try {
    ranks.join(meeting_of(flags_));
    check_output_files(flags_);
    report.emplace(flags_.report, console_);
    return train(ranks, *report);
  } catch (const Error& failure) {
    if (report) report->give_up(ranks.watch().death_behind(failure).value_or(failure));
    console_.end_progress();
    return ranks.end_with(failure, status_of_refusal(failure));
  }
}

int Train::train(const RunRanks& ranks, RunReport& report) {
  // Ranks that have met end together, so that a signal to one before the first step is a wish as well.
  std::optional<StopSignals> stop;
  if (ranks.are_several()) stop.emplace(StopSignalsOptions{true, ranks.is_first()});
  InjectedFaults faults(flags_.inject);
  const DataChoice choice(flags_.data, model_folder(flags_));
  TrainerOptions options = resolve_training(flags_, choice.vocabulary());
  for (const std::string& warning : options.config.warnings) ranks.log_of_all().warning(warning);
  std::optional<TrainingData> data;
  if (flags_.epochs > 0) {
    data.emplace(open_training_data(flags_, choice, options, console_));
    settle_steps(flags_, *data, options, console_);
  }
  ranks.take_paths(options.config);
  check_nvme_folders(options.config.placement);
  const ComputeChoice compute(options.config, console_, ranks.communicator());
  options.compute = compute.device();
  options.config = compute.settle(options.config, flags_.replay_decisions, console_);
  ranks.apply_to(options.config);
  options.communicator = ranks.communicator();
  if (ranks.are_several()) {
    if (!data) data.emplace(open_training_data(flags_, choice, options, console_));
    ranks.agree([&] { return facts_of_run(options, flags_, *data); });
  }
  StepRecording recording(flags_, console_);
  const RunStart start = choose_start(flags_, options.config, options.communicator, console_);
  keep_gradient_group(start, options.config.batch);
  options.tier_start = start.commit ? TierStart::resume : TierStart::fresh;
  options.commit = start.commit ? start.commit->commit : 0;
  options.discard_commits = !start.commit && start.discard_commits;
  ranks.agree([&] { return facts_of_start(start, flags_); });
  TrainingSetup setup = plan_or_refuse(options, console_);
  const std::string sides = update_sides_text(options.config, setup);
  if (!sides.empty()) console_.info(sides);
  const TrainerPlan plan = setup.plan;
  require_machine_memory(plan, setup.dry.device.own_memory.has_value(), probe_machine(),
                         current_memory_use().pss_bytes, console_);
  TrainDecisions decisions(setup, flags_);
  const SaveFolderOfRun saves =
      ranks.is_first() ? open_save_folder(flags_, plan, console_) : SaveFolderOfRun();
  if (!data) data.emplace(open_training_data(flags_, choice, options, console_));
  if (flags_.resume.empty()) require_empty_monitors(options.config.monitor);
  StepLog log(flags_.log, options.config.logs_lanes ? ranks.communicator() : nullptr);
  // Measuring takes a while, so it comes after everything that can be refused.
  std::optional<PlanPrediction> prediction;
  if (ranks.is_first()) {
    const PlanningWatch watch(console_);
    prediction = predict_training(options, setup, console_);
  }
  if (prediction) warn_of_wear(options, *prediction, setup.plan.disk, console_);

  StopSignals& signals = stop ? *stop : stop.emplace();
  RunSummary summary;
  summary.unigram_loss = data->unigram_loss();
  const std::vector<ReportFact> facts =
      training_facts(flags_, options, plan, start, *data, summary.unigram_loss);
  console_.print(training_header(facts, flags_.verbose, console_.columns()));
  report.begin(options, plan, facts, summary.unigram_loss, prediction);
  summary.predicted.begin(std::move(prediction));
  console_.info(crash_notice(flags_, options.config, plan));
  PassedSets passed(ranks.is_first() ? start.passed : std::vector<StateSet>{}, console_);
  if (start.is_resumed()) options.weights.clear();  // the state that is gone on from has its own weights
  const auto made = make_trainer(
      start, options, std::move(setup), *data,
      [&](TrainingSetup& used) {
        faults.apply_to(used.offload, console_);
        used.offload.hooks.step_events = recording.events();
        decisions.apply_to(used, console_);
      },
      console_);
  Trainer& trainer = *made;
  if (!start.given_up.empty())
    flags_.fresh ? console_.warning(start.given_up) : console_.info(start.given_up);
  passed.begin(trainer.offloader().commits().are_kept());
  if (start.is_resumed() && trainer.completed_steps() >= options.steps) {
    console_.info(fmt::format("step {} is reached already (--steps {}): there is nothing left to train",
                              trainer.completed_steps(), options.steps));
  }
  summary.commit_step = trainer.durable_step();
  log.start(trainer.completed_steps(), options.steps, trainer.model_description(),
            config_values_json(options.config));
  for (const std::string& spec : flags_.inject) log.fault_on_purpose(trainer.completed_steps(), spec);

  recording.begin(trainer, options.communicator);
  report.attach(trainer, plan, recording);
  RunMonitor monitor(monitor_settings(options.config), trainer.consumed_samples(), start.is_resumed());
  const StepShape shape{options.config.batch.micro_batches, options.model.layers};
  StepProgress progress(
      flags_, options.config, summary,
      {trainer.offloader().report().watch(), signals, shape, std::log(options.model.vocabulary)}, console_);

  const std::unique_ptr<WatchdogThread> watchdog = start_watchdog(trainer, ranks);
  const RankWatch::Following following =
      ranks.watch().follow({trainer.offloader().report().watch(), trainer.completed_steps(),
                            trainer.offloader().commits().are_kept()});
  const std::unique_ptr<JobControl> control = start_control(trainer, shape, signals, ranks);
  // The report shows the results of the observers before it.
  std::vector<RunObserver*> observers = {&summary, &log,     &recording, &faults,
                                         &report,  &monitor, &progress,  &passed};
  if (control != nullptr) observers.push_back(control.get());
  observers.push_back(&ranks.watch());
  RunSaves kept(flags_, options, trainer, saves.folder.get(), observers, console_);
  TrainingRun training({flags_, trainer, kept, observers, signals, control.get(), ranks.watch(), console_});
  training.run();
  record_schedule(trainer);
  const std::optional<Error> failure = training.end();
  summary.model = trainer.model_description();
  summary.tokenizer = tokenizer_of(flags_);
  summary.parameter_count = plan.parameter_count;
  summary.planned_steps = options.steps;
  for (const std::filesystem::path& path : tier_paths(options.config.placement))
    summary.nvme_paths += (summary.nvme_paths.empty() ? "" : " ") + path.string();
  add_memory(summary, trainer, plan);
  try {
    if (ranks.is_first())
      print_result(flags_.json ? summary_json(summary) : summary_text(summary, flags_.verbose));
  } catch (const Error& unwritten) {
    if (!failure) throw;
    print_error(unwritten);
  }
  if (!failure) return kDone;
  console_.end_progress();
  ranks.end_with(*failure, status_of_refusal(*failure));
  return kFailed;
}

}  // namespace

std::unique_ptr<Subcommand> add_train(Command& app) {
  return std::make_unique<Train>(app);
}

}  // namespace terrace
