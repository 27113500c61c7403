// `terrace train`: plans the run, says what is going to happen, makes the trainer and those who follow it,
// lets TrainingRun train, and reports.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/aio/folder.h>
#include <terrace/runtime/observe/trace/schedule_file.h>
#include <terrace/runtime/ranks/run_ranks.h>

#include "command_line.h"
#include "console.h"
#include "flags/model_choice.h"
#include "flags/output_files.h"
#include "flags/shown_configuration.h"
#include "flags/train_flags.h"
#include "train/followed_run.h"
#include "train/passed_when_kept.h"
#include "train/planned_run.h"
#include "train/run_report.h"
#include "train/run_saves.h"
#include "train/stop_signals.h"
#include "train/train_facts.h"
#include "train/train_ranks.h"
#include "train/train_run.h"
#include "train/train_summary.h"

namespace terrace {
namespace {

// Returns the tokenizer that an export of the model needs; empty if the model has none.
std::string tokenizer_of(const TrainFlags& flags) {
  if (!flags.data.tokenizer.empty()) return flags.data.tokenizer;
  const std::filesystem::path folder = model_folder(flags);
  return !folder.empty() && io::is_there(folder / "tokenizer.json") ? flags.model : "";
}

class Train final : public Subcommand {
 public:
  explicit Train(Command& app)
      : Subcommand(app, "train",
                   "Train a model on text or tokens, within budgets of device and host memory") {
    flags_.add_to(command_);
  }

  int run() override {
    if (!wants_configuration(flags_)) return train();
    RankConsole program(console_);
    const RunRanks ranks(own_environment(), program);
    take_part(ranks.identity(), flags_, console_);
    return ranks.is_first() ? show_configuration(flags_, console_) : kDone;
  }

 private:
  int train();
  int train(const RunRanks& ranks, RunReport& report);
  void announce(PlannedRun& run, RunReport& report);
  void record_schedule(const Trainer& trainer);
  int report_end(const RunRanks& ranks, const RunRecord& run, const std::optional<Error>& failure);

  TrainFlags flags_;
  Console console_;
};

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
  PlannedRun run(flags_, ranks, report.said(), console_);
  StopSignals& signals = stop ? *stop : stop.emplace();

  announce(run, report);
  PassedSets passed(ranks.on_first([&] { return run.start().passed; }), console_);
  PassedWhenKept passed_when_kept(passed);
  const std::unique_ptr<Trainer> trainer = run.make_trainer();
  passed.begin(trainer->offloader().commits().are_kept());

  const FollowedRun followed(
      {flags_, run, *trainer, report, passed_when_kept, signals, ranks.watch(), console_});
  RunSaves saves(flags_, run.options(), *trainer, run.save_folder(), followed.observers(), console_);
  if (run.start().set) saves.take_over();
  TrainingRun training(
      {flags_, *trainer, saves, followed.observers(), signals, followed.control(), ranks.watch(), console_});
  training.run();
  record_schedule(*trainer);
  const std::optional<Error> failure = training.end();
  return report_end(ranks, report.record(), failure);
}

// Says what is going to happen.
void Train::announce(PlannedRun& run, RunReport& report) {
  const RunHeader header =
      run_header(flags_, run.options(), run.plan(), run.start(), run.data(), run.take_prediction());
  console_.print(training_header(header.facts, flags_.verbose, console_.columns()));
  report.begin(header);
  console_.info(crash_notice(flags_, run.options().config, run.plan()));
}

void Train::record_schedule(const Trainer& trainer) {
  if (flags_.record_schedule.empty()) return;
  try {
    write_schedule(flags_.record_schedule, trainer.recorded_schedule());
  } catch (const Error& unwritten) {
    console_.warning(unwritten.in(Door::program));  // training is as good without the schedule
  }
}

// The first rank speaks for all.
int Train::report_end(const RunRanks& ranks, const RunRecord& run, const std::optional<Error>& failure) {
  try {
    if (ranks.is_first())
      print_result(flags_.json ? summary_json(run)
                               : summary_text(run, {flags_.verbose, true, tokenizer_of(flags_)}));
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
