// What is predicted of a run, beside the run.
#include <terrace/reference/planning/predict.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/reference/planning/dry_training.h>

#include "reference/trainer_rig.h"

namespace terrace::predict_test {
namespace {

using namespace trainer_tests;

struct PlannedCase {
  const char* name;
  std::function<void(RunOptions&)> run;
  std::function<void(TrainerOptions&)> change = [](TrainerOptions&) {};
};

void parameters_on_nvme(TrainerOptions& options) {
  options.config.placement.parameters = Placement::nvme;
  options.config.placement.parameter_paths = options.config.placement.state_paths;
}

std::vector<PlannedCase> planned_cases() {
  const auto nvme = [](RunOptions& run) { run.nvme = "there"; };
  const auto compact = [](RunOptions& run) {
    run.nvme = "there";
    run.precision = run.compact = "true";
    run.update = "next_forward";
  };
  const auto in_host_memory = [](RunOptions& run) {
    run.parameters = "cpu";
    run.precision = "true";
  };
  const auto as_gradients_land = [](RunOptions& run) {
    run.nvme = "there";
    run.parameters = "cpu";
    run.update = "during_backward";
    run.clipping = "0";
  };
  const auto divided = [](RunOptions& run) {
    run.nvme = "there";
    run.parameters = "cpu";
    run.precision = run.compact = "true";
    run.ratio = "0.5";
  };
  const auto accumulates = [](TrainerOptions& options) {
    parameters_on_nvme(options);
    options.config.batch = {2, 3};
    options.config.activations.offload = ActivationOffload::cpu;
    options.config.terrace.durable = false;
    options.config.terrace.device_memory_bytes = 4 * kMiB;
  };
  const auto partly_frozen = [](RunOptions& run) {
    run.nvme = "there";
    run.more = {{"terrace.frozen", R"(["*h.0.*", "*h.1.mlp*"])", "a test"}};
    run.layers = 4;  // and the blocks of neither file a multiple of 5, so that each one rounds
  };
  const auto on_two_paths = [](TrainerOptions& options) {
    PlacementConfig& placement = options.config.placement;
    const std::filesystem::path folder = placement.state_paths.front();
    placement.state_paths = {folder / "one", folder / "other"};
    for (const std::filesystem::path& path : placement.state_paths) std::filesystem::create_directory(path);
    parameters_on_nvme(options);
  };
  const auto fp16 = [](TrainerOptions& options) { options.config.precision = DataType::fp16; };
  return {{"everything on the device", [](RunOptions&) {}},
          {"parameters and states in host memory", in_host_memory},
          {"states on nvme", nvme},
          {"both on nvme, compact, in the next forward", compact, parameters_on_nvme},
          {"during backward, not clipped", as_gradients_land},
          {"micro-batches, and activations on the host", nvme, accumulates},
          {"half of the update on the device", divided},
          {"frozen weights and two paths", partly_frozen, on_two_paths},
          {"fp16 during backward", as_gradients_land, fp16}};
}

TEST(Prediction, OfBytesAndMemoryIsWhatTheTrainerCounts) {
  for (const PlannedCase& c : planned_cases()) {
    SCOPED_TRACE(c.name);
    const ScratchFolder folder;
    RunOptions run;
    c.run(run);
    if (!run.nvme.empty()) run.nvme = folder.path();
    TrainerOptions options = options_of(run);
    c.change(options);
    Workers workers(1);
    const TrainingSetup setup = plan_training(options);
    const PlanPrediction prediction = predict_run(options.config, setup, workers);
    EXPECT_FALSE(prediction.has_times);

    MemoryLog log;
    TrainingData data(TrainerRun::tokens(1), {kContext, options.config.terrace.seed, 0});
    Trainer trainer(options, data, log);
    for (uint64_t step = 1; step <= prediction.repeats_from_step + 1; ++step) {
      const StepReport report = trainer.step();
      if (step < prediction.repeats_from_step) continue;
      EXPECT_TRUE(moves_the_same(report.moved, prediction.step)) << "step " << step;
    }
    EXPECT_EQ(prediction.tiers[0].peak_bytes, trainer.device().peak_bytes());
    uint64_t host_bytes = 0;
    for (const TierUse& use : trainer.offloader().budget().ledger()) host_bytes += use.bytes;
    EXPECT_EQ(prediction.tiers[1].peak_bytes, host_bytes);
    if (run.nvme.empty()) continue;
    EXPECT_EQ(prediction.tiers[2].peak_bytes, trainer.offloader().report().tier_file_bytes());
    uint64_t disk_bytes = 0;
    for (const PathShare& share : setup.plan.disk) disk_bytes += share.bytes;
    EXPECT_EQ(disk_bytes, trainer.offloader().report().tier_file_bytes());
  }
}

TEST(MeasuredMachine, WithHalfOfItsProcessorsTakesTwiceAsLong) {
  const TrainerOptions options = options_of(RunOptions{});
  Workers workers(1);
  const TrainingSetup setup = plan_training(options);
  MeasuredMachine machine =
      measure_machine(options.config, setup, workers, {.operations_seconds = 0.01, .rate_ns = 1'000'000});
  machine.rates.disk_read_bytes = 1e9;
  const MachineRates alone = machine.rates;
  const char* const kOperation = "mb0/h.0.mlp.fc/forward";
  const OperationTime operation = machine.operations.of(kOperation, 1);
  EXPECT_GT(operation.leased_seconds, 0);
  machine.divide_processors(0.5);
  EXPECT_EQ(machine.operations.of(kOperation, 1).leased_seconds, 2 * operation.leased_seconds);
  EXPECT_EQ(machine.operations.of(kOperation, 1).after_seconds, 2 * operation.after_seconds);
  EXPECT_EQ(machine.rates.update_elements, alone.update_elements / 2);
  EXPECT_EQ(machine.rates.copy_bytes, alone.copy_bytes / 2);
  EXPECT_EQ(machine.rates.chunk_seconds, 2 * alone.chunk_seconds);
  EXPECT_EQ(machine.rates.disk_read_bytes, alone.disk_read_bytes);
}

// Two operations for each element and token, and four backward; nothing else on this machine slows them down.
TEST(OperationTimes, OfAGivenRateFollowFromIt) {
  OperationTimes times(10, 1000);
  times.slow_down(2);
  EXPECT_EQ(times.of("mb0/h.0.mlp.fc/forward", 50).leased_seconds, 1);
  EXPECT_EQ(times.of("mb0/h.0.mlp.fc/backward", 50).leased_seconds, 2);
  EXPECT_EQ(times.of("mb0/h.0.mlp.fc/backward", 50).after_seconds, 0);
}

TEST(Prediction, OfACommitIsWhatItWrites) {
  const ScratchFolder folder;
  RunOptions run;
  run.nvme = folder.path();
  run.parameters = "cpu";
  TrainerRun real(run);
  Workers workers(1);
  const TrainingSetup setup = plan_training(real.options);
  const PlanPrediction prediction = predict_run(real.options.config, setup, workers);
  EXPECT_GT(prediction.commit_write_bytes, 0u);
  real.train(1);
  real.trainer->begin_commit();
  real.trainer->finish_commit();
  const uint64_t before = real.trainer->offloader().report().counters().commit_write_bytes;
  real.train(1);
  real.trainer->begin_commit();
  real.trainer->finish_commit();
  EXPECT_EQ(real.trainer->offloader().report().counters().commit_write_bytes - before,
            prediction.commit_write_bytes);
}

}  // namespace
}  // namespace terrace::predict_test
