// terrace_run.h: a training through C that is followed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/control/job_status.h>
#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::run_test {
namespace {

using capi::expect_kind;
using capi::is_well;
using ::testing::HasSubstr;

static_assert(sizeof(terrace_run_options) == 152);
static_assert(offsetof(terrace_run_options, steps) == 8);
static_assert(offsetof(terrace_run_options, model) == 32);
static_assert(offsetof(terrace_run_options, has_loss_scale) == 72);
static_assert(offsetof(terrace_run_options, control_folder) == 96);
static_assert(offsetof(terrace_run_options, log) == 120);
static_assert(offsetof(terrace_run_options, scalars) == 136);
static_assert(sizeof(terrace_run_step) == 88);
static_assert(offsetof(terrace_run_step, loss) == 32);
static_assert(offsetof(terrace_run_step, forward_ns) == 72);

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// A training of two steps of the rig, and a run that follows it.
struct Followed {
  explicit Followed(const std::filesystem::path& folder)
      : training(capi::kOnNvme, folder),
        log((folder / "steps.jsonl").string()),
        csv((folder / "csv").string()),
        control((folder / "control").string()) {
    options.steps = 4;
    options.model = "a small one";
    options.config = R"({"lr": 0.5})";
    options.log_path = log.c_str();
    options.csv = csv.c_str();
    options.control_folder = control.c_str();
  }
  ~Followed() { terrace_run_free(run); }

  bool begin() { return is_well(terrace_run_begin(training.get(), &options, &run)); }
  terrace_run_step of(uint64_t number) const {
    terrace_run_step step = TERRACE_INIT(terrace_run_step);
    step.step = number;
    step.samples = 2 * number;
    step.loss = 1.5;
    step.learning_rate = 0.5;
    step.gradient_norm = std::nan("");
    step.loss_scale = step.next_loss_scale = 1;
    step.update_ns = 1;
    return step;
  }
  // Tells of a step that has been trained before, so that requests are served.
  uint32_t tell(uint64_t number) {
    const terrace_run_step step = of(number);
    uint32_t stops = 0;
    EXPECT_TRUE(is_well(terrace_run_step_done(run, &step, &stops)));
    return stops;
  }
  // The answer to a request, while the run tells of steps.
  JsonNode ask(const ControlRequest& request) {
    std::future<JsonNode> answer = std::async(std::launch::async, [&] {
      for (const auto& entry : std::filesystem::directory_iterator(control))
        if (entry.is_socket()) return ControlClient(entry.path()).ask(request);
      throw Error(ErrorKind::io, {"there is no socket", control, "", ""});
    });
    while (answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) tell(2);
    return answer.get();
  }

  capi::Training training;
  const std::string log, csv, control;
  terrace_run_options options = TERRACE_INIT(terrace_run_options);
  terrace_run* run = nullptr;
};

TEST(CRun, TellsTheLogAndTheMonitors) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  ASSERT_TRUE(followed.begin());
  for (uint64_t number = 1; number <= 2; ++number) {
    followed.training.step(number);
    EXPECT_EQ(followed.tell(number), 0u);
  }
  EXPECT_TRUE(is_well(terrace_run_evaluated(followed.run, 2, 0.25)));
  EXPECT_TRUE(is_well(terrace_run_kept(followed.run, 1, nullptr)));
  EXPECT_TRUE(is_well(terrace_run_kept(followed.run, 2, "saves/2")));
  EXPECT_TRUE(is_well(terrace_run_end(followed.run, 2, "the user", nullptr, nullptr)));
  const std::vector<std::string> lines = lines_of(followed.log);
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_THAT(lines[0], HasSubstr(R"("event": "start", "step": 0, "steps": 4)"));
  EXPECT_THAT(lines[0], HasSubstr(R"("model": "a small one", "config": {"lr": 0.5})"));
  for (const size_t memory : {1, 7})
    EXPECT_THAT(lines[memory], HasSubstr(R"("tiers": [{"name": "device", "budget_bytes": )"));
  EXPECT_THAT(lines[2],
              HasSubstr(R"("event": "step", "step": 1, "loss": 1.5, "lr": 0.5, "gradient_norm": null)"));
  EXPECT_THAT(lines[4], HasSubstr(R"("event": "evaluation", "step": 2, "validation_loss": 0.25)"));
  EXPECT_THAT(lines[5], HasSubstr(R"("event": "commit", "step": 1)"));
  EXPECT_THAT(lines[6], HasSubstr(R"("event": "checkpoint", "step": 2, "folder": "saves/2")"));
  EXPECT_THAT(lines[8], HasSubstr(R"("event": "end", "step": 2, "stopped_by": "the user")"));
  // What the store has moved in the step is there.
  EXPECT_THAT(lines[3], HasSubstr("\"h2d_bytes\": "));
  EXPECT_THAT(lines[3], ::testing::Not(HasSubstr("\"h2d_bytes\": 0,")));
  EXPECT_FALSE(std::filesystem::is_empty(followed.csv));
}

TEST(CRun, TellsAProgramTheScalarsOfTheFiles) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  followed.options.csv = nullptr;
  std::vector<std::string> heard;
  followed.options.scalars_context = &heard;
  followed.options.scalars = [](void* context, uint64_t samples, const char* const* tags,
                                const double* values, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
      static_cast<std::vector<std::string>*>(context)->push_back(
          fmt::format("{} {} {}", samples, tags[i], values[i]));
  };
  ASSERT_TRUE(followed.begin());
  followed.training.step(1);
  followed.tell(1);
  EXPECT_TRUE(is_well(terrace_run_evaluated(followed.run, 1, 0.25)));
  EXPECT_THAT(heard,
              ::testing::ElementsAre("2 Train/Samples/train_loss 1.5", "2 Train/Samples/lr 0.5",
                                     "2 Train/Samples/gradient_norm nan", "2 Validation/Samples/loss 0.25"));
}

TEST(CRun, AnswersOverItsSocket) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  uint32_t asked = 0;
  followed.options.save_context = &asked;
  followed.options.save = [](void* context) -> uint32_t {
    ++*static_cast<uint32_t*>(context);
    return TERRACE_KEPT_CHECKPOINT;
  };
  ASSERT_TRUE(followed.begin());
  followed.training.step(1);
  followed.training.step(2);
  followed.tell(2);
  const JobStatus status = parse_job_status(*followed.ask({ControlCommand::status, 0}).find("status"));
  EXPECT_EQ(status.model, "a small one");
  EXPECT_EQ(status.step, 2u);
  EXPECT_EQ(status.steps, 4u);
  EXPECT_EQ(status.tiers.size(), 3u);
  followed.ask({ControlCommand::save, 0});
  EXPECT_EQ(asked, 1u);
  uint64_t in_force = 0, least = 0;
  EXPECT_TRUE(is_well(terrace_host_budget(followed.training.get(), &in_force, &least)));
  followed.ask({ControlCommand::set, least});
  EXPECT_TRUE(is_well(terrace_host_budget(followed.training.get(), &in_force, &least)));
  EXPECT_EQ(in_force, least);
  followed.ask({ControlCommand::stop, 0});
  EXPECT_EQ(followed.tell(2), 1u);
}

// What comes into host memory again is not what was written.
TEST(CRun, TellsTheKindOfAFailureWhileTheBudgetChanges) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  ASSERT_TRUE(followed.begin());
  for (uint64_t number = 1; number <= 2; ++number) {
    followed.training.step(number);
    followed.tell(number);
  }
  uint64_t all = 0, least = 0;
  EXPECT_TRUE(is_well(terrace_host_budget(followed.training.get(), &all, &least)));
  followed.ask({ControlCommand::set, least});
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() != "records.tier") continue;
    const auto bytes = std::filesystem::file_size(entry.path());
    std::ofstream(entry.path(), std::ios::binary | std::ios::in) << std::string(bytes, '\x5a');
  }
  terrace_error* failure = nullptr;
  const auto asked = std::async(std::launch::async, [&] {
    for (const auto& entry : std::filesystem::directory_iterator(followed.control)) {
      if (!entry.is_socket()) continue;
      EXPECT_THROW(ControlClient(entry.path()).ask({ControlCommand::set, all}), Error);
    }
  });
  const terrace_run_step step = followed.of(2);
  uint32_t stops = 0;
  while (failure == nullptr) failure = terrace_run_step_done(followed.run, &step, &stops);
  EXPECT_EQ(terrace_error_kind_of(failure), TERRACE_CORRUPT) << terrace_error_text(failure);
  terrace_error_free(failure);
  terrace_run_free(followed.run);
  followed.run = nullptr;
}

TEST(CRun, ChangesNoNumber) {
  const ScratchFolder folder, other;
  capi::Training alone(capi::kOnNvme, other.path());
  Followed followed(folder.path());
  ASSERT_TRUE(followed.begin());
  for (uint64_t number = 1; number <= 2; ++number) {
    alone.step(number);
    followed.training.step(number);
    followed.tell(number);
  }
  EXPECT_EQ(alone.state(), followed.training.state());
}

TEST(CRun, GoesBeforeItsStoreOrAfterIt) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  ASSERT_TRUE(followed.begin());
  terrace_run* second = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_run_begin(followed.training.get(), &followed.options, &second));
  terrace_run_free(followed.run);
  followed.run = nullptr;
  ASSERT_TRUE(followed.begin());
  followed.training.end();
  uint32_t stops = 0;
  const terrace_run_step step = followed.of(1);
  expect_kind(TERRACE_MISUSE, terrace_run_step_done(followed.run, &step, &stops));
  EXPECT_TRUE(std::filesystem::is_empty(followed.control)) << "a socket that nobody answers at";
}

TEST(CRun, ThatCannotBeginLeavesTheStoreAsItWas) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  const std::string nowhere = (folder.path() / "nowhere/steps.jsonl").string();
  followed.options.log_path = nowhere.c_str();
  expect_kind(TERRACE_IO, terrace_run_begin(followed.training.get(), &followed.options, &followed.run));
  EXPECT_EQ(followed.run, nullptr);
  followed.options.log_path = followed.log.c_str();
  ASSERT_TRUE(followed.begin());
  followed.training.step(1);
  followed.tell(1);
}

TEST(CRun, RefusesMonitorsOfAnotherRun) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  ASSERT_TRUE(followed.begin());
  followed.training.step(1);
  followed.tell(1);
  terrace_run_free(followed.run);
  followed.run = nullptr;
  expect_kind(TERRACE_CONFIG, terrace_run_begin(followed.training.get(), &followed.options, &followed.run));
  followed.options.is_resumed = 1;
  followed.options.completed_steps = 1;
  followed.options.samples = 2;
  EXPECT_TRUE(followed.begin());
}

TEST(CRun, AnswersToWhateverIsGiven) {
  const ScratchFolder folder;
  Followed followed(folder.path());
  expect_kind(TERRACE_MISUSE, terrace_run_begin(nullptr, &followed.options, &followed.run));
  expect_kind(TERRACE_MISUSE, terrace_run_begin(followed.training.get(), nullptr, &followed.run));
  expect_kind(TERRACE_MISUSE, terrace_run_begin(followed.training.get(), &followed.options, nullptr));
  uint32_t stops = 0;
  const terrace_run_step step = followed.of(1);
  expect_kind(TERRACE_MISUSE, terrace_run_step_done(nullptr, &step, &stops));
  expect_kind(TERRACE_MISUSE, terrace_run_evaluated(nullptr, 1, 0));
  expect_kind(TERRACE_MISUSE, terrace_run_kept(nullptr, 1, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_run_end(nullptr, 1, nullptr, nullptr, nullptr));
  terrace_run_free(nullptr);
  ASSERT_TRUE(followed.begin());
  expect_kind(TERRACE_MISUSE, terrace_run_step_done(followed.run, nullptr, &stops));
  expect_kind(TERRACE_MISUSE, terrace_run_step_done(followed.run, &step, nullptr));
}

}  // namespace
}  // namespace terrace::run_test
