// What is planned for a GPU, on one that is played.
#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/reference/planning/dry_training.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/settle.h>
#include <terrace/reference/planning/ways_out.h>

#include "played_gpu.h"
#include "reference/trainer_rig.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::trainer_tests::planning_test {
namespace {

constexpr uint64_t kHostBytes = 64 * kGiB;

struct Shortage {
  uint64_t needed_bytes;
  std::vector<WayOut> ways;
};

Shortage shortage_of(const TrainerOptions& options) {
  Workers workers(1);
  try {
    set_up_training(options.config, options.model, workers, options.compute);
  } catch (const ShortageError& refusal) {
    return {refusal.tiers()[0].needed_bytes,
            find_ways_out(refusal, options.config, options.model, workers, options.compute, kHostBytes)};
  }
  ADD_FAILURE() << "it fits";
  return {};
}

TrainerOptions too_large_for(const PlayedGpu& gpu) {
  RunOptions run;
  run.compute = gpu.compute.get();
  TrainerOptions options = options_of(run);
  options.model.layers = 1;
  options.model.width = 128;
  options.config.batch = {64, 1};
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = kMiB;
  return options;
}

TEST(CudaPlanning, OffersWaysOutThatFitWhenTheyAreTried) {
  PlayedGpu gpu({.driver = {.granularity_bytes = kMiB}});  // of which the host's plans know nothing
  const ScratchFolder scratch;
  TrainerOptions options = too_large_for(gpu);
  options.config.placement.state_paths = {scratch.path()};
  const Shortage shortage = shortage_of(options);
  ASSERT_EQ(shortage.ways.size(), 3u);
  EXPECT_EQ(shortage.ways[0].changes.front().option, Option::device_budget);
  for (const WayOut& way : shortage.ways) {
    SCOPED_TRACE(way.effect);
    TrainerOptions tried = options;
    tried.config = way.config;
    MemoryLog log;
    TrainingData data(TrainerRun::tokens(1), {tried.model.context, tried.config.terrace.seed, 0});
    Trainer trainer(tried, data, log);
    trainer.step();
    EXPECT_LE(gpu.driver.used_bytes(), *way.config.terrace.device_memory_bytes);
  }
}

// Memory of the host for more of it is of no use.
TEST(CudaPlanning, OffersNoMoreMemoryThanIsFreeOnTheGpu) {
  uint64_t needed = 0;
  {
    PlayedGpu roomy;
    needed = shortage_of(too_large_for(roomy)).needed_bytes;
  }
  ASSERT_GT(needed, kMiB);
  PlayedGpu small({.driver = {.memory_bytes = needed}});  // and a part of it is not for a run
  const Shortage shortage = shortage_of(too_large_for(small));
  ASSERT_FALSE(shortage.ways.empty());
  for (const WayOut& way : shortage.ways)
    EXPECT_LE(*way.config.terrace.device_memory_bytes, facts_of(small.compute.get()).own_memory->budget_bytes)
        << way.effect;
}

// A GPU of which it is noted how much memory is asked for at once.
class NotedGpu final : public ComputeDevice {
 public:
  explicit NotedGpu(const PlayedGpu& gpu) : gpu_(*gpu.compute) {}
  ComputeFacts facts() const override { return gpu_.facts(); }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override { return gpu_.make_dry_ops(workers); }
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const override {
    ++begun_;
    most_bytes_ = std::max(most_bytes_, budget_bytes);
    return gpu_.begin(budget_bytes, strict, workers);
  }
  uint64_t most_bytes() const { return most_bytes_; }
  uint32_t begun() const { return begun_; }

 private:
  const ComputeDevice& gpu_;
  mutable uint64_t most_bytes_ = 0;
  mutable uint32_t begun_ = 0;
};

RunOptions planned_on(const NotedGpu& gpu, const char* preset) {
  RunOptions run;
  run.preset = preset;
  run.layers = 1;
  run.compute = &gpu;
  return run;
}

// As little device memory as will do.
RunOptions offloaded(RunOptions run) {
  run.parameters = "cpu";
  run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
  return run;
}

constexpr MeasuringTime kOnce = {.operations_seconds = 0, .rate_ns = 0};

void expect_times(const PlanPrediction& prediction) {
  EXPECT_TRUE(prediction.has_times);
  EXPECT_GT(prediction.forward_seconds, 0);
  EXPECT_GT(prediction.backward_seconds, 0);
  EXPECT_GE(prediction.update_seconds, 0);  // so little may be over before the device has computed
  EXPECT_NEAR(prediction.forward_seconds + prediction.backward_seconds + prediction.update_seconds,
              prediction.step_seconds, 1e-9);
  EXPECT_NEAR(static_cast<double>(prediction.step.time.total_ns()) * 1e-9, prediction.step_seconds, 1e-5);
  ASSERT_TRUE(prediction.compute.has_value());
  EXPECT_GT(prediction.compute->device_ns, 0u);
  const auto rests_on = [&](const char* name) {
    return std::ranges::count(prediction.rates, name, &PredictedRate::name);
  };
  EXPECT_EQ(rests_on("copies to the device"), 1);
  EXPECT_EQ(rests_on("copies between host and device"), 0) << "of the simulated device";
}

// What the times are says nothing here; that there are some, of what, and what they take does.
TEST(CudaPlanning, PredictsTimesWithinTheBudgetAndTheBytesOfTheRun) {
  PlayedGpu gpu;
  const NotedGpu noted(gpu);
  const RunOptions there = planned_on(noted, "gpt2");
  const RunOptions below = offloaded(there);
  Workers workers(1);
  const TrainingSetup tight = plan_training(options_of(below));
  const MeasuredMachine machine = measure_machine(options_of(below).config, tight, workers, kOnce);
  EXPECT_GT(noted.most_bytes(), 0u);
  EXPECT_LE(noted.most_bytes(), tight.plan.memory.device_bytes);
  EXPECT_EQ(gpu.driver.used_bytes(), 0u);
  EXPECT_EQ(gpu.driver.registered_bytes(), 0u);
  for (const RunOptions& run : {there, below}) {
    SCOPED_TRACE("device memory " + run.device_memory);
    const TrainerOptions options = options_of(run);
    const TrainingSetup setup = plan_training(options);
    const PlanPrediction prediction = predict_run(options.config, setup, workers, &machine);
    expect_times(prediction);
    if (run.parameters.empty()) continue;  // much the same as its training elsewhere

    TrainerRun trained(run);
    StepReport report;
    for (uint64_t step = 0; step <= prediction.repeats_from_step; ++step) report = trained.trainer->step();
    EXPECT_TRUE(moves_the_same(report.moved, prediction.step));
    EXPECT_EQ(gpu.driver.used_bytes(), prediction.tiers[0].peak_bytes);
  }
}

// With adapters, and with segments that are computed again layer by layer.
TEST(CudaPlanning, MeasuresEveryOperationThatAStepConsistsOf) {
  PlayedGpu gpu;
  const NotedGpu noted(gpu);
  RunOptions gpt = planned_on(noted, "gpt2"), llama = planned_on(noted, "llama-3.2-1b");
  llama.layers = 2;
  RunOptions by_layer = gpt, with_adapters = llama;
  by_layer.layers = 2;
  by_layer.accumulation = "2";
  by_layer.order = "layer";
  with_adapters.more = {{"terrace.lora.rank", "4", "a test"}};
  const RunOptions* const runs[] = {&gpt, &by_layer, &llama, &with_adapters};
  Workers workers(1);
  for (const RunOptions* const run : runs) {
    SCOPED_TRACE(run->preset + ", order " + run->order + (run->more.empty() ? "" : ", adapters"));
    const TrainingSetup setup = plan_training(options_of(*run));
    const FlatSpace space(setup.tensors, setup.plan.chunk_elements);
    const uint64_t waits = gpu.driver.calls("cuStreamSynchronize");
    const OperationTimes times(*setup.model, 1, workers, {&noted, setup.plan.memory.device_bytes}, 0);
    if (run == &gpt) {  // of which a whole micro-batch is tried, twice, and waited for at both ends of each
      EXPECT_GE(gpu.driver.calls("cuStreamSynchronize") - waits, 4 * setup.dry.trace.size());
    }
    for (const TensorUse& use : setup.dry.trace) {
      uint64_t elements = 0;
      for (const TensorId tensor : use.tensors) elements += space.tensor(tensor).element_count();
      EXPECT_GT(times.of(use.operation, elements).leased_seconds, 0) << use.operation;
    }
  }
  EXPECT_EQ(noted.begun(), 4u);
  EXPECT_EQ(gpu.driver.used_bytes(), 0u);
}

TEST(CudaPlanning, TriesFewerTokensWhereMemoryIsShort) {
  PlayedGpu gpu;
  const NotedGpu noted(gpu);
  RunOptions run = planned_on(noted, "gpt2");
  const TrainingSetup setup = plan_training(options_of(run));
  Workers workers(1);
  const auto times = [&](uint64_t device_bytes) {
    return OperationTimes(*setup.model, 2, workers, {&noted, device_bytes}, 0);
  };
  const std::string all = times(kGiB).description();
  EXPECT_NE(all.find("2 x 8 tokens"), std::string::npos) << all;
  constexpr uint64_t kLittle = 72 * kKiB;
  const uint64_t most = noted.most_bytes();
  EXPECT_GT(most, kLittle);
  const NotedGpu little(gpu);
  const OperationTimes fewer(*setup.model, 2, workers, {&little, kLittle}, 0);
  EXPECT_EQ(fewer.description().find("2 x 8 tokens"), std::string::npos) << fewer.description();
  EXPECT_LE(little.most_bytes(), kLittle);
  terrace::testing::expect_error(ErrorKind::capacity, {"4.00 KiB"}, [&] { times(4 * kKiB); });
}

// Nothing of what was measured with stays.
TEST(CudaPlanning, MeasuresBothSidesOfTheUpdateBeforeARun) {
  PlayedGpu gpu;
  RunOptions run;
  run.compute = gpu.compute.get();
  run.parameters = "cpu";
  run.ratio = "auto";
  MemoryLog log;
  const PlacementConfig placement = settle(options_of(run).config, {.compute = run.compute}, log).placement;
  ASSERT_TRUE(placement.update_rates);
  EXPECT_GT(placement.update_rates->processor_elements, 0);
  EXPECT_GT(placement.update_rates->link_bytes, 0);
  EXPECT_EQ(placement.update_rates->nvme_bytes, 0);
  EXPECT_GT(gpu.driver.calls("cuMemHostRegister"), 0u);
  EXPECT_EQ(gpu.driver.used_bytes(), 0u);
  EXPECT_NE(placement.sides_origin.find("GB/s each way"), std::string::npos) << placement.sides_origin;
}

}  // namespace
}  // namespace terrace::trainer_tests::planning_test
