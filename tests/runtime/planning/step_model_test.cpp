// The time of planned steps, with rates that make it plain what it has to be.
#include <terrace/runtime/planning/step_model.h>

#include <gtest/gtest.h>

#include <terrace/runtime/planning/dry_training.h>

#include "runtime/trainer_rig.h"

namespace terrace {
namespace {

using namespace trainer_tests;

constexpr double kOperationSeconds = 1;

// Three steps of a run, and how long the last of them takes.
class Planned {
 public:
  explicit Planned(RunOptions run) : options_(options_of(run)), workers_(1), setup_(plan_training(options_)) {
    mode_ = *options_.config.terrace.update;
    DryTraining training(options_.config, setup_, mode_, workers_);
    for (int s = 0; s < 3; ++s) {
      PlannedStep step;
      step.moved = training.step();
      step.events = training.take_record();
      step.update_order = training.update_order();
      steps_.push_back(std::move(step));
    }
  }
  StepSeconds seconds(const MachineRates& rates) const {
    const auto a_second = [](std::string_view, uint64_t) { return OperationTime{kOperationSeconds, 0}; };
    return model_step({options_.config, setup_, mode_, rates, a_second}, steps_);
  }
  double compute_seconds() const { return kOperationSeconds * static_cast<double>(setup_.dry.trace.size()); }
  const OffloadCounters& moved() const { return steps_.back().moved; }

 private:
  TrainerOptions options_;
  Workers workers_;
  TrainingSetup setup_;
  UpdateMode mode_{};
  std::vector<PlannedStep> steps_;
};

MachineRates two_threads() {
  MachineRates rates;
  rates.thread_count = 2;
  return rates;
}

RunOptions in_host_memory() {
  RunOptions run;
  run.parameters = "cpu";
  return run;
}

// The least host memory that holds every gradient: records stream.
RunOptions streaming(const std::string& update, const std::string& parameters) {
  RunOptions run;
  run.nvme = "/nowhere/at/all";
  run.parameters = parameters;
  run.update = update;
  run.host_memory = std::to_string(plan_training(options_of(run)).plan.memory.host_holding_bytes);
  return run;
}

TEST(StepModel, TakesWhatOperationsTakeWhereAllElseIsFree) {
  const Planned planned(in_host_memory());
  const StepSeconds seconds = planned.seconds(two_threads());
  EXPECT_NEAR(seconds.total(), planned.compute_seconds(), 1e-6);
  EXPECT_GT(seconds.forward, 0);
  EXPECT_GT(seconds.backward, seconds.forward);
}

TEST(StepModel, IsBoundByALinkThatTakesLongerThanAllOperations) {
  const Planned planned(in_host_memory());
  MachineRates rates = two_threads();
  const auto most = static_cast<double>(std::max(planned.moved().h2d_bytes, planned.moved().d2h_bytes));
  const double link_seconds = 10 * planned.compute_seconds();
  rates.copy_bytes = most / link_seconds;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_GE(seconds.total(), link_seconds);
  EXPECT_LE(seconds.total(), 2 * link_seconds + 2 * planned.compute_seconds());
  EXPECT_GT(seconds.parts[TimeCause::device_copy], seconds.parts[TimeCause::compute]);
}

TEST(StepModel, HasTheDiskReadAndWriteEveryRecordAfterBackward) {
  const Planned planned(streaming("after_backward", ""));
  const auto bytes =
      static_cast<double>(planned.moved().record_read_bytes + planned.moved().record_write_bytes);
  ASSERT_GT(bytes, 0);
  MachineRates rates = two_threads();
  rates.disk_read_bytes = rates.disk_write_bytes = rates.disk_mixed_bytes = bytes / 100;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.update, 100, 1e-6);
  EXPECT_NEAR(seconds.total(), planned.compute_seconds() + 100, 1e-6);
}

// The forward pass goes on while the update streams, and the backward pass waits for its end.
TEST(StepModel, HidesAnUpdateInTheNextForward) {
  const Planned planned(streaming("next_forward", "cpu"));
  const auto bytes =
      static_cast<double>(planned.moved().record_read_bytes + planned.moved().record_write_bytes);
  MachineRates rates = two_threads();
  rates.disk_read_bytes = rates.disk_write_bytes = rates.disk_mixed_bytes = bytes / 2;
  const double short_one = planned.seconds(rates).total();
  EXPECT_LT(short_one, planned.compute_seconds() + 2);
  rates.disk_mixed_bytes = bytes / 1000;
  const StepSeconds long_one = planned.seconds(rates);
  EXPECT_NEAR(long_one.forward, 1000, planned.compute_seconds());
  EXPECT_LT(long_one.update, 1e-6);
}

}  // namespace
}  // namespace terrace
