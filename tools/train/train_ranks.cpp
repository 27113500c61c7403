#include "train/train_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include <terrace/comm/agreement/rank_places.h>
#include <terrace/reference/rank_setup.h>

#include "command_line.h"
#include "train/stop_signals.h"

namespace terrace {
namespace {

// Every rank records its own trace (StepRecording).
void keep_what_every_rank_has(TrainFlags& flags) {
  flags.log.clear(), flags.report.clear(), flags.record_schedule.clear();
  if (flags.trace.empty()) flags.trace_memory.clear();  // that of the report
  flags.no_control = true;
}

}  // namespace

void RankConsole::say(const Error& failure) {
  console_.end_progress();
  print_error(failure);
}

void RankConsole::say_as(const std::string& ranks, const Error& failure) {
  console_.end_progress();
  if (!ranks.empty()) console_.speak_for(ranks);
  console_.error(failure.in(Door::program));
}

void RankConsole::rank_has_died() {
  pass_over_stop_signals();
}

void RankConsole::end_at_once() {
  std::_Exit(kFailed);
}

Environment own_environment() {
  return environment_from(environ);
}

void take_part(const RankIdentity& rank, TrainFlags& flags, Console& console) {
  if (rank.alone()) return;
  flags.ranks_started = rank.size;
  flags.launcher = name_of(rank.launcher);
  if (rank.rank == 0) return;
  console.speak_for(text_of_ranks({&rank.rank, 1}));
  keep_what_every_rank_has(flags);
}

RankMeeting meeting_of(const TrainFlags& flags) {
  TrainFlags without_file = flags;
  without_file.config.clear();
  for (const TrainFlags* known : std::initializer_list<const TrainFlags*>{&flags, &without_file}) {
    try {
      const TerraceConfig config = resolve_config(*known).terrace;
      return {config.communicator, std::chrono::seconds(config.rank_timeout_seconds)};
    } catch (const Error&) {
      // It is refused again by whoever trains.
    }
  }
  return {};
}

std::map<std::string, std::string> facts_of_run(const TrainerOptions& options, const TrainFlags& flags,
                                                const TrainingData& data) {
  std::map<std::string, std::string> facts = facts_of_run(options);
  const auto given = [](const std::string& value) { return value.empty() ? "not given" : value; };
  facts["the version of Terrace"] = TERRACE_VERSION;
  facts["the hash of the data"] = fmt::format("{:016x}", data.fingerprint());
  facts["the data's tokens to train on"] = std::to_string(data.train_token_count());
  facts["--save"] = flags.save.empty() ? "not given" : "given";  // one folder may have two names
  facts["--resume"] = given(flags.resume);
  facts["--fresh"] = flags.fresh ? "given" : "not given";
  facts["--save-every"] = std::to_string(flags.save_every);
  facts["--eval-every"] = std::to_string(flags.eval_every);
  facts["--eval-samples"] = std::to_string(flags.eval_samples);
  return facts;
}

std::map<std::string, std::string> facts_of_start(const RunStart& start, const TrainFlags& flags) {
  std::map<std::string, std::string> facts = facts_of(start);
  facts["--trace"] = flags.trace.empty() ? "not given" : "given";  // one file may have two names
  facts["--trace-steps"] = flags.trace_steps;
  return facts;
}

int refuse_on_all_ranks(const Error& failure) {
  constexpr std::chrono::seconds kPatience{5};  // where others have another command line, they may never come
  Console console;
  RankConsole program(console);
  RunRanks ranks(own_environment(), program);
  TrainFlags flags;
  take_part(ranks.identity(), flags, console);
  try {
    ranks.join({.timeout = kPatience});
  } catch (const Error&) {
    // Each says it by itself.
  }
  console.end_progress();
  return ranks.end_with(failure, status_of_refusal(failure));
}

}  // namespace terrace
