// `terrace train` as one of several ranks (runtime/ranks): what is said of them on the console, what of the
// flags is the first rank's alone, and what all must have been started with.
#pragma once

#include <terrace/base/error.h>
#include <terrace/reference/data/training_data.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/ranks/run_ranks.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/train_resume.h"

namespace terrace {

// RankConsole: the program to its rank. What it is told to say goes to the console, the end is the process's.
class RankConsole final : public RankProgram {
 public:
  // `console` outlives this.
  explicit RankConsole(Console& console) : console_(console) {}
  Log& log() override { return console_; }
  void say(const Error& failure) override;
  void say_as(const std::string& ranks, const Error& failure) override;
  void rank_has_died() override;
  void end_at_once() override;

 private:
  Console& console_;
};

// The rank of this process, in its environment.
Environment own_environment();

// Takes from `flags` what is the first rank's alone. Of another rank, the console has warnings and errors
// only from here on.
void take_part(const RankIdentity& rank, TrainFlags& flags, Console& console);

// How the ranks meet that have these flags. What is wrong with a configuration is said when they have met,
// and then once; until then the flags by themselves count.
RankMeeting meeting_of(const TrainFlags& flags);

// What ranks must have alike that train the same.
std::map<std::string, std::string> facts_of_run(const TrainerOptions& options, const TrainFlags& flags,
                                                const TrainingData& data);
// What ranks must have chosen alike that go on from there.
std::map<std::string, std::string> facts_of_start(const RunStart& start, const TrainFlags& flags);

// The end of a rank whose command line cannot be used: it joins the others to tell them, and the user once.
// Returns the exit status.
int refuse_on_all_ranks(const Error& failure);

}  // namespace terrace
