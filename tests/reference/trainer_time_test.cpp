// Where the time of a Trainer's steps goes, wherever things are and whenever updates run: parts that are all
// of it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <terrace/reference/trainer.h>

#include "reference/trainer_rig.h"

namespace terrace::trainer_time_test {
namespace {

using trainer_tests::kContext;

// Every look takes a nanosecond, so that no part of a step is too short to be seen, and nothing depends on
// how fast the machine is.
class LookClock final : public Clock {
 public:
  uint64_t now_ns() const override { return ++looks_; }

 private:
  mutable std::atomic<uint64_t> looks_{0};
};

struct TimeCase {
  std::string parameters;
  std::string states;
  UpdateMode mode;
};

class TrainerTime : public ::testing::TestWithParam<TimeCase> {};

TrainerOptions options_of(const TimeCase& c, const std::filesystem::path& nvme, const Clock& clock) {
  std::vector<ConfigOverride> overrides = {{"terrace.threads", "1", "a test"},
                                           {"terrace.device_memory", "16MiB", "a test"},
                                           {"terrace.host_memory", "64MiB", "a test"},
                                           {"terrace.chunk_elements", "4096", "a test"},
                                           {"bf16.enabled", "true", "a test"},
                                           {"gradient_accumulation_steps", "2", "a test"},
                                           {"terrace.commit_every_steps", "2", "a test"},
                                           {"terrace.update", std::string(name_of(c.mode)), "a test"}};
  const auto place = [&](const std::string& key, const std::string& device) {
    if (device == "none") return;
    overrides.push_back({"zero_optimization." + key + ".device", device, "a test"});
    if (device == "nvme")
      overrides.push_back({"zero_optimization." + key + ".nvme_path", nvme.string(), "a test"});
  };
  if (c.parameters != "none") overrides.push_back({"zero_optimization.stage", "3", "a test"});
  place("offload_param", c.parameters);
  place("offload_optimizer", c.states);
  TrainerOptions options;
  options.config = default_train_config(overrides);
  options.model = trainer_tests::tiny_model();
  options.clock = &clock;
  return options;
}

TEST_P(TrainerTime, IsTheSumOfItsPartsInEveryStep) {
  const LookClock clock;
  const ScratchFolder folder;
  MemoryLog log;
  const TrainerOptions options = options_of(GetParam(), folder.path(), clock);
  const TrainingData data(trainer_tests::TrainerRun::tokens(1),
                          {kContext, options.config.terrace.seed, /*validation_fraction=*/0});
  Trainer trainer(options, data, log);
  TimeParts run;
  const uint64_t begin_ns = clock.now_ns();
  for (int step = 0; step < 5; ++step) {
    const uint64_t before_ns = clock.now_ns();
    const StepReport report = trainer.step();
    const uint64_t after_ns = clock.now_ns();
    const TimeParts& parts = report.moved.time;
    EXPECT_GT(report.total_ns, 0u);
    EXPECT_EQ(parts.total_ns(), report.total_ns);
    EXPECT_EQ(report.keeping_ns + report.forward_backward_ns + report.update_ns, report.total_ns);
    EXPECT_LE(report.total_ns - report.keeping_ns, after_ns - before_ns);
    EXPECT_GT(parts[TimeCause::compute], 0u);
    EXPECT_GT(parts[TimeCause::overhead], 0u);
    EXPECT_GT(parts[TimeCause::update], 0u);
    EXPECT_LE(report.forward_ns, report.forward_backward_ns);
    run = run + parts;
    trainer.look_after_state();
  }
  const FinishedUpdate last = trainer.finish_update();
  EXPECT_EQ(last.moved.time.total_ns(), last.ns);
  // Nothing is counted twice, whichever step it is counted in.
  EXPECT_LE(run.total_ns() + last.ns, clock.now_ns() - begin_ns);
  EXPECT_GT(run[TimeCause::commit], 0u);
}

std::vector<TimeCase> cases() {
  std::vector<TimeCase> list = {{"none", "none", UpdateMode::after_backward}};
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    list.push_back({"none", "cpu", mode});
    list.push_back({"none", "nvme", mode});
    list.push_back({"cpu", "cpu", mode});
    list.push_back({"cpu", "nvme", mode});
    list.push_back({"nvme", "nvme", mode});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TrainerTime, ::testing::ValuesIn(cases()), [](const auto& test) {
  return test.param.parameters + "_" + test.param.states + "_" + std::string(name_of(test.param.mode));
});

}  // namespace
}  // namespace terrace::trainer_time_test
