// Who follows a run: what the log begins with, who is told of what in which order, and what is turned off.
#include "train/followed_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>

#include "tools/train/train_rig.h"
#include "train/train_facts.h"

namespace terrace::followed_run_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train_tests::TrainRig;

// A run with a log, up to where it is followed.
struct Followed {
  explicit Followed(std::vector<std::string> words = {}) : rig(words) {
    rig.flags().log = rig.path_of("steps.jsonl");
    run = &rig.plan();
    rig.report().begin(run_header(rig.flags(), run->options(), run->plan(), run->start(), run->data(),
                                  run->take_prediction()));
    trainer = run->make_trainer();
    followed.emplace(FollowedRun::Parts{rig.flags(), *run, *trainer, rig.report(), passed_when_kept, signals,
                                        rig.ranks().watch(), rig.console()});
  }

  std::vector<JsonNode> lines() const {
    std::vector<JsonNode> lines;
    std::ifstream file(rig.path_of("steps.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(parse_json(line, "steps.jsonl"));
    return lines;
  }
  std::vector<std::string> events() const {
    std::vector<std::string> events;
    for (const JsonNode& line : lines()) events.push_back(line.find("event")->text);
    return events;
  }
  void step() {
    for (RunObserver* observer : followed->observers()) observer->step_begins(trainer->completed_steps() + 1);
    const StepReport report = trainer->step();
    for (RunObserver* observer : followed->observers()) observer->step_done(report);
  }
  bool is_told(const RunObserver& one) const {
    return std::ranges::find(followed->observers(), &one) != followed->observers().end();
  }

  TrainRig rig;
  StopSignals signals;
  PassedSets passed{{}, rig.console()};
  PassedWhenKept passed_when_kept{passed};
  PlannedRun* run = nullptr;
  std::unique_ptr<Trainer> trainer;
  std::optional<FollowedRun> followed;
};

TEST(FollowedRun, BeginsTheLogWithTheModelAndWhereItGoesOn) {
  const Followed run;
  ASSERT_THAT(run.events(), ElementsAre("start"));
  const JsonNode start = run.lines().front();
  const JsonNode* const model = start.find("model");
  const JsonNode* const step = start.find("step");
  ASSERT_TRUE(model != nullptr && step != nullptr);
  EXPECT_EQ(model->text, run.trainer->model_description());
  EXPECT_EQ(step->whole_number(), 0u);
}

TEST(FollowedRun, SaysInTheLogWhatFaultsThereAreOnPurpose) {
  const Followed run(
      {"--offload-optimizer", "nvme", "--nvme-path", "NVME", "--inject", "write:error=EIO,at=999"});
  ASSERT_GE(run.events().size(), 2u);
  EXPECT_THAT(json_text(run.lines()[1]), HasSubstr("write:error=EIO,at=999"));
}

TEST(FollowedRun, TellsEverybodyOfAStep) {
  Followed run;
  run.step();
  run.step();
  EXPECT_EQ(run.rig.report().record().completed_steps(), 2u);
  const std::vector<std::string> events = run.events();
  EXPECT_EQ(std::ranges::count(events, "step"), 2);
}

// The log has a step before the report reads it there, and memory stands before both.
TEST(FollowedRun, TellsTheLogBeforeTheReport) {
  const Followed run;
  const auto place_of = [&](const RunObserver& one) {
    const auto observers = run.followed->observers();
    return std::ranges::find(observers, &one) - observers.begin();
  };
  EXPECT_TRUE(run.is_told(run.run->log()));
  EXPECT_TRUE(run.is_told(run.run->recording()));
  EXPECT_TRUE(run.is_told(run.run->faults()));
  EXPECT_TRUE(run.is_told(run.passed_when_kept));
  EXPECT_LT(place_of(run.run->log()), place_of(run.rig.report()));
  EXPECT_LT(place_of(run.run->recording()), place_of(run.run->log()));
}

TEST(FollowedRun, CanBeReachedAndTellsTheOtherRanksLast) {
  const Followed run;
  ASSERT_NE(run.followed->control(), nullptr);
  const auto observers = run.followed->observers();
  EXPECT_EQ(observers.back(), &run.rig.ranks().watch());
  EXPECT_EQ(observers[observers.size() - 2], run.followed->control());
  const std::filesystem::path runtime = run.rig.path_of("runtime");
  size_t sockets = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(runtime))
    sockets += entry.is_socket();
  EXPECT_EQ(sockets, 1u);
}

TEST(FollowedRun, ListensOnNothingWhereThatIsTurnedOff) {
  const Followed run({"--no-control"});
  EXPECT_EQ(run.followed->control(), nullptr);
  EXPECT_EQ(run.followed->observers().back(), &run.rig.ranks().watch());
  size_t sockets = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run.rig.path_of("runtime")))
    sockets += entry.is_socket();
  EXPECT_EQ(sockets, 0u);
}

}  // namespace
}  // namespace terrace::followed_run_test
