// A training run that is asked and told things through its socket.
#include <terrace/runtime/observe/control/job_control.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>

#include <terrace/base/units.h>
#include <terrace/runtime/observe/control/control_client.h>

#include "reference/small_training.h"
#include "support/expect_error.h"

namespace terrace::job_control_test {
namespace {

using testing::expect_error;
using ::testing::HasSubstr;

struct ControlledRun {
  explicit ControlledRun(const std::filesystem::path& folder)
      : control(subject(), {.folder = folder, .steps = 100, .stop = [this] { stopped = true; }}, run.log) {}

  JobSubject subject() {
    Trainer& trainer = *run.trainer;
    return {{trainer.offloader(), trainer.device(), trainer.plan().device.bytes},
            trainer.model_description(),
            trainer.completed_steps(),
            trainer.update_mode(),
            trainer.durable_step()};
  }
  void step() {
    const StepReport report = run.trainer->step();
    control.step_done(report);
    serve();
  }
  void serve() {
    control.serve({[&](uint64_t bytes) { return run.trainer->set_host_budget(bytes); },
                   [&] {
                     return SaveAnswer{true, false, std::nullopt};
                   }});
  }
  // While steps go on.
  JsonNode ask(const ControlRequest& request) {
    std::future<JsonNode> answer =
        std::async(std::launch::async, [&] { return ControlClient(control.socket()).ask(request); });
    while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) serve();
    return answer.get();
  }
  JobStatus status() {
    const JsonNode answer = ask({ControlCommand::status, 0});
    return parse_job_status(*answer.find("status"));
  }

  SmallTraining run;
  std::atomic<bool> stopped{false};
  JobControl control;
};

struct ScratchRun {
  ScratchFolder scratch;
  ControlledRun run{scratch.path() / "control"};
};

TEST(JobControl, SaysHowTheRunIsDoing) {
  ScratchRun scratch;
  ControlledRun& job = scratch.run;
  ASSERT_TRUE(job.control.listens());
  JobStatus status = job.status();
  EXPECT_EQ(status.step, 0u);
  EXPECT_EQ(status.steps, 100u);
  EXPECT_FALSE(status.loss);
  EXPECT_EQ(status.commit_step, std::nullopt);
  ASSERT_EQ(status.tiers.size(), 3u);
  EXPECT_EQ(status.tiers[1].budget_bytes, 64 * kMiB);

  const StepReport report = job.run.trainer->step();
  job.control.step_done(report);
  job.control.state_kept({.commit_step = 1, .checkpoint = std::nullopt});
  status = job.status();
  EXPECT_EQ(status.step, 1u);
  EXPECT_EQ(status.loss, report.loss);
  EXPECT_EQ(status.tokens, report.tokens);
  EXPECT_EQ(status.step_ns, report.total_ns);
  EXPECT_EQ(status.links.items[0].amount, report.moved.h2d_bytes);
  EXPECT_EQ(status.kept_chunks, job.run.kept());
  EXPECT_EQ(status.record_chunks, job.run.trainer->plan().memory.record_chunks);
  EXPECT_EQ(status.commit_step, 1u);
  EXPECT_EQ(status.tiers[0].peak_bytes, job.run.trainer->device().peak_bytes());
  EXPECT_EQ(status.tiers[2].used_bytes, job.run.trainer->offloader().report().tier_file_bytes());

  // One fact does not undo the other.
  job.control.state_kept({.commit_step = std::nullopt, .checkpoint = SavedCheckpoint{1, "saves/step-1"}});
  status = job.status();
  EXPECT_EQ(status.commit_step, 1u);
  EXPECT_EQ(status.checkpoint_step, 1u);
  job.control.commits_removed();
  EXPECT_EQ(job.status().commit_step, std::nullopt);
}

TEST(JobControl, ChangesTheHostBudgetAndSaysWhatCameOfIt) {
  ScratchRun scratch;
  ControlledRun& job = scratch.run;
  job.step();
  const uint64_t least = job.status().least_host_bytes;
  const JsonNode answer = job.ask({ControlCommand::set, least + 2 * job.run.slot()});
  EXPECT_EQ(json_whole_number(answer, "kept_chunks"), 2u);
  EXPECT_EQ(json_whole_number(answer, "host_budget_bytes"), least + 2 * job.run.slot());
  EXPECT_GT(json_whole_number(answer, "write_bytes"), 0u);
  EXPECT_EQ(job.run.kept(), 2u);
  // The status knows at once, before any other step; what was used at most is not forgotten.
  const JobStatus status = job.status();
  EXPECT_EQ(status.kept_chunks, 2u);
  EXPECT_EQ(status.tiers[1].budget_bytes, least + 2 * job.run.slot());
  EXPECT_LT(status.tiers[1].used_bytes, status.tiers[1].peak_bytes);
  expect_error(ErrorKind::capacity, {"host budget"}, [&] { job.ask({ControlCommand::set, least - 1}); });
  EXPECT_EQ(job.run.kept(), 2u);
  job.step();
}

TEST(JobControl, SavesAndStopsAsTheRunDoes) {
  ScratchRun scratch;
  ControlledRun& job = scratch.run;
  job.step();
  const JsonNode answer = job.ask({ControlCommand::save, 0});
  EXPECT_EQ(json_whole_number(answer, "step"), 1u);
  EXPECT_TRUE(answer.find("checkpoint")->boolean);
  EXPECT_FALSE(answer.find("commit")->boolean);
  EXPECT_FALSE(job.stopped);
  EXPECT_EQ(json_whole_number(ControlClient(job.control.socket()).ask({ControlCommand::stop, 0}), "step"),
            1u);
  EXPECT_TRUE(job.stopped);  // without the step thread
}

TEST(JobControl, GoesOnWhereNobodyCanReachItAndSaysSoOnce) {
  ScratchFolder scratch;
  std::ofstream(scratch.path() / "taken") << "a file";
  ControlledRun job(scratch.path() / "taken");
  EXPECT_FALSE(job.control.listens());
  job.step();
  job.control.state_kept({.commit_step = 1, .checkpoint = std::nullopt});
  uint32_t warnings = 0;
  for (const MemoryLog::Line& line : job.run.log.lines()) {
    if (line.text.find("cannot be reached by `terrace ctl`") == std::string::npos) continue;
    EXPECT_EQ(line.level, LogLevel::warning);
    ++warnings;
  }
  EXPECT_EQ(warnings, 1u);
}

}  // namespace
}  // namespace terrace::job_control_test
