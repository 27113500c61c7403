// Trainings through the CUDA back end without a GPU. A kernel runs when its stream comes to it, long after it
// was asked for, so a copy that does not wait for it has other bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <terrace/reference/inference.h>
#include <terrace/reference/planning/dry_training.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/settle.h>

#include "played_gpu.h"
#include "reference/trainer_rig.h"
#include "support/expect_error.h"
#include "support/offloaders.h"
#include "support/sanitized.h"

namespace terrace::trainer_tests::training_test {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;  // of steps that were not skipped
  std::vector<bool> skipped;
  std::vector<std::byte> state;  // master weights and moments
};

Outcome train(const RunOptions& options, uint64_t steps = 3) {
  TrainerRun run(options);
  Outcome outcome;
  for (uint64_t s = 0; s < steps; ++s) {
    const StepReport report = run.trainer->step();
    outcome.losses.push_back(report.loss);
    if (!report.skipped) outcome.norms.push_back(report.gradient_norm);
    outcome.skipped.push_back(report.skipped);
  }
  outcome.state = run.state();
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_EQ(actual.skipped, expected.skipped);
  EXPECT_TRUE(actual.state == expected.state) << "master weights or moments";
}

class CudaTraining : public ::testing::TestWithParam<std::string> {
 protected:
  RunOptions on_gpu(const PlayedGpu& gpu) const {
    RunOptions run;
    run.preset = GetParam();
    run.layers = 1;
    run.compute = gpu.compute.get();
    return run;
  }
  // The same with its roles below the device and as little device memory as will do.
  RunOptions offloaded(RunOptions run, const std::string& parameters, bool states_on_nvme) const {
    run.parameters = parameters;
    if (states_on_nvme) run.nvme = folder_.path();
    run.durable = "false";
    run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
    return run;
  }
  // Returns the checkpoint of a training of one step.
  fs::path saved_after_a_step(const RunOptions& run) const {
    TrainerRun trained(run);
    trained.train(1);
    return trained.trainer->save({folder_.path(), trained.log});
  }
  const ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Families, CudaTraining,
                         ::testing::ValuesIn(testing::thinned<std::string>({"gpt2", "llama-3.2-1b"})),
                         [](const auto& family) { return std::string(family.param).substr(0, 4); });

TEST_P(CudaTraining, HasTheSameBitsWhereverTheStateRests) {
  PlayedGpu gpu;
  const RunOptions there = on_gpu(gpu);
  const Outcome expected = train(there);
  RunOptions roomy = offloaded(there, "nvme", true);
  roomy.device_memory = there.device_memory;
  const RunOptions scenes[] = {offloaded(there, "cpu", false), offloaded(there, "cpu", true),
                               offloaded(there, "nvme", true), roomy};
  for (const RunOptions& scene : scenes) {
    SCOPED_TRACE("parameters on " + scene.parameters + ", device memory " + scene.device_memory);
    expect_same(train(scene), expected);
  }
  EXPECT_EQ(gpu.driver.leftovers(), "1 contexts; ");
}

// A kernel that still reads a slot when a file is read into it, or one that is launched before the file is
// there, has other bytes.
TEST_P(CudaTraining, HasTheSameBitsWhereTheGpuReadsParametersByItself) {
  PlayedGpu gpu;
  RunOptions there = on_gpu(gpu);
  there.accumulation = "2";  // or gradients would make room for all parameters on the host
  const Outcome expected = train(there, 2);
  RunOptions run = there;
  run.reads_past_host = true;
  run = offloaded(run, "nvme", true);
  run.host_memory = least_host_memory(run);
  expect_same(train(run, 2), expected);
  EXPECT_GT(gpu.cu_file.read_bytes(), 0u);
  EXPECT_EQ(gpu.cu_file.leftovers(), "driver open");
  // The folder is on a disk or in memory: it can be read so, or it is said why not.
  const fs::path folder = folder_.path();
  const std::string reason = gpu.compute->why_no_file_reads({&folder, 1});
  EXPECT_TRUE(reason.empty() || reason.find("no direct I/O") != std::string::npos) << reason;
}

// Gradients of several micro-batches add up in device memory or on the host, one micro-batch after the other
// or layer by layer, and the inputs of layers wait where there is room.
TEST_P(CudaTraining, AddsUpTheSameBitsOfSeveralMicroBatches) {
  PlayedGpu gpu;
  RunOptions there = on_gpu(gpu);
  there.accumulation = "2";
  there.precision = "true";
  const Outcome expected = train(there, 2);
  RunOptions below = offloaded(there, "cpu", false);
  below.activations = "cpu";
  expect_same(train(below, 2), expected);
  there.order = "layer";
  there.activations = "auto";
  expect_same(train(there, 2), expected);
}

// States of host memory and of nvme pass through the GPU, half of them or all, and no stream is waited for.
TEST_P(CudaTraining, UpdatesThereWhatRestsBelowWithTheSameBits) {
  PlayedGpu gpu;
  RunOptions run = on_gpu(gpu);
  const Outcome expected = train(run);
  run.compact = run.precision = "true";
  const Outcome compact = train(run);
  for (const bool on_nvme : {false, true}) {
    for (const char* const ratio : {"0.5", "0"}) {
      SCOPED_TRACE(std::string("ratio ") + ratio + (on_nvme ? ", nvme" : ", cpu"));
      RunOptions whole = on_gpu(gpu);
      whole.ratio = ratio;
      expect_same(train(offloaded(whole, "cpu", on_nvme)), expected);
    }
  }
  run.ratio = "0.5";
  const RunOptions half = offloaded(run, "cpu", false);
  TrainerRun trained(half);
  trained.trainer->step();
  EXPECT_EQ(gpu.driver.used_bytes(), trained.trainer->plan().memory.device_bytes);
  const uint64_t waits = gpu.driver.calls("cuStreamSynchronize");
  trained.trainer->step();
  trained.trainer->step();
  EXPECT_EQ(gpu.driver.calls("cuStreamSynchronize"), waits);
  EXPECT_TRUE(trained.state() == compact.state);
}

struct Sided {
  std::vector<bool> on_device;
  std::vector<double> losses;
  std::vector<uint64_t> bytes;  // of every step, in both directions
  std::vector<std::byte> state;
  OffloadCounters last;  // what the last step moved
  PlanPrediction planned;
};

// Three steps.
Sided train_sided(const RunOptions& run) {
  const TrainerOptions options = options_of(run);
  Workers workers(1);
  TrainingSetup setup = plan_training(options);
  Sided sided;
  sided.planned = predict_run(options.config, setup, workers);
  sided.on_device = setup.plan.memory.device_side;
  MemoryLog log;
  const TrainingData data(TrainerRun::tokens(1), {kContext, options.config.terrace.seed, 0});
  Trainer trainer(options, std::move(setup), data, log);
  for (int step = 0; step < 3; ++step) {
    const StepReport report = trainer.step();
    sided.losses.push_back(report.loss);
    sided.bytes.insert(sided.bytes.end(), {report.moved.h2d_bytes, report.moved.d2h_bytes});
    sided.last = report.moved;
  }
  sided.state = terrace::testing::records_of(trainer.offloader());
  return sided;
}

// Rates decide, chunk by chunk.
TEST_P(CudaTraining, HasTheSameBitsWhicheverSideRatesChoose) {
  PlayedGpu gpu;
  RunOptions run = on_gpu(gpu);
  run.parameters = "cpu";
  const Sided processor = train_sided(run);
  run.ratio = "auto";
  run.update_rates = UpdateRates{1e9 / 3, 17e9 / 3, 0};
  const Sided both = train_sided(run);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(both.on_device, true)),
              static_cast<double>(both.on_device.size()) / 2, 2);
  EXPECT_EQ(both.losses, processor.losses);
  EXPECT_TRUE(both.state == processor.state);
  EXPECT_NE(both.bytes, processor.bytes);
  EXPECT_TRUE(moves_the_same(both.last, both.planned.step));
}

// Attention's forward pass and the loss differ from the host's in their last bits.
TEST_P(CudaTraining, IsNearTheHosts) {
  PlayedGpu gpu;
  RunOptions run = on_gpu(gpu);
  const Outcome there = train(run);
  run.compute = nullptr;
  const Outcome host = train(run);
  for (size_t s = 0; s < host.losses.size(); ++s) {
    EXPECT_NEAR(there.losses[s], host.losses[s], 1e-5 * host.losses[s]);
    EXPECT_NEAR(there.norms[s], host.norms[s], 1e-4 * host.norms[s]);
  }
}

// The gradients of a step: plain SGD with a rate of 1 takes them off the master weights.
std::vector<double> gradients_of(RunOptions run) {
  run.optimizer = "SGD";
  run.clipping = "0";
  run.more.push_back({"optimizer.params.lr", "1", "a test"});
  TrainerRun training(run);
  const auto masters = [&] {
    const std::vector<std::byte> state = training.state();
    std::vector<float> values(state.size() / sizeof(float));
    std::memcpy(values.data(), state.data(), values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> before = masters();
  EXPECT_FALSE(training.trainer->step().skipped);
  const std::vector<float> after = masters();
  std::vector<double> gradients;
  for (size_t i = 0; i < before.size(); ++i) gradients.push_back(double{before[i]} - after[i]);
  return gradients;
}

// The size of what differs, as a part of the size of the second.
double distance(const std::vector<double>& one, const std::vector<double>& other) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < other.size(); ++i) {
    difference += (one[i] - other[i]) * (one[i] - other[i]);
    size += other[i] * other[i];
  }
  return std::sqrt(difference / size);
}

// On the host nothing is rounded but what is stored. Rounded to bf16, a number changes by 2^-8 of itself at
// most, to fp16 by 2^-11, and a gradient goes through some ten products.
TEST_P(CudaTraining, HasGradientsOf16BitsNearTheHosts) {
  for (const bool is_bf16 : {true, false}) {
    SCOPED_TRACE(is_bf16 ? "bf16" : "fp16");
    std::vector<std::vector<double>> gradients;
    for (const bool rounds : {true, false}) {
      PlayedGpu gpu({.rounds_rows = rounds});
      RunOptions run = on_gpu(gpu);
      run.precision = is_bf16 ? "true" : "false";
      if (!is_bf16) run.more = {{"fp16.enabled", "true", "a test"}, {"fp16.loss_scale", "256", "a test"}};
      gradients.push_back(gradients_of(run));
      if (rounds) continue;
      run.compute = nullptr;
      gradients.push_back(gradients_of(run));
    }
    EXPECT_GT(distance(gradients[0], gradients[2]), 1e-5);
    EXPECT_LT(distance(gradients[0], gradients[2]), is_bf16 ? 0x1p-6 : 0x1p-9);
    EXPECT_LT(distance(gradients[1], gradients[2]), 1e-5);
  }
}

TEST_P(CudaTraining, KeepsItsBudgetToTheByteAndWaitsForNoStream) {
  PlayedGpu gpu;
  const RunOptions least = offloaded(on_gpu(gpu), "cpu", false);
  {
    TrainerRun run(least);
    run.trainer->step();
    EXPECT_EQ(gpu.driver.used_bytes(), run.trainer->plan().memory.device_bytes);
    EXPECT_EQ(std::to_string(gpu.driver.used_bytes()), least.device_memory);
    EXPECT_EQ(run.trainer->device().peak_bytes(), gpu.driver.used_bytes());
    const uint64_t waits = gpu.driver.calls("cuStreamSynchronize");
    run.trainer->step();
    EXPECT_EQ(gpu.driver.calls("cuStreamSynchronize"), waits);
  }
  EXPECT_EQ(gpu.driver.used_bytes(), 0u);
  RunOptions less = least;
  less.device_memory = std::to_string(std::stoull(least.device_memory) - 1);
  // What the gradients of tied embeddings do without.
  EXPECT_LT(plan_training(options_of(less)).plan.memory.device_bytes, std::stoull(least.device_memory));
}

TEST_P(CudaTraining, GoesOnFromTheLastCommitWhenTheGpuFails) {
  std::vector<double> expected;
  {
    PlayedGpu gpu;
    expected = TrainerRun(on_gpu(gpu)).train(3);
  }
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost ? "the device is lost" : "a copy fails");
    const ScratchFolder folder;
    RunOptions durable;
    {
      PlayedGpu gpu;
      durable = on_gpu(gpu);
      durable.parameters = "nvme";
      durable.nvme = folder.path();
      durable.commit_every_steps = "1";
      TrainerRun run(durable);
      EXPECT_EQ(run.train(2), (std::vector<double>{expected[0], expected[1]}));
      run.trainer->look_after_state();
      run.trainer->finish_commit();
      // The first copy to the host is that of the loss, the second one that of a gradient.
      lost ? gpu.driver.lose_device() : gpu.driver.fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_LAUNCH_FAILED);
      const char* const named = lost ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : "slot";
      terrace::testing::expect_error(ErrorKind::device, {named}, [&] { run.trainer->step(); });
    }
    PlayedGpu another;
    durable.compute = another.compute.get();
    durable.start = TierStart::resume;
    TrainerRun run(durable);
    EXPECT_EQ(run.trainer->completed_steps(), 2u);
    EXPECT_EQ(run.train(1), std::vector<double>{expected[2]});
  }
}

TEST_P(CudaTraining, TakesGranulesOfTheGpuForChunks) {
  PlayedGpu gpu({.driver = {.granularity_bytes = 64 * kKiB}});
  RunOptions run = on_gpu(gpu);
  terrace::testing::expect_error(ErrorKind::config, {"16384"}, [&] { plan_training(options_of(run)); });
  run.chunk_elements = "16384";
  const std::vector<double> losses = train(run, 2).losses;
  const RunOptions least = offloaded(run, "cpu", false);
  TrainerRun tight(least);
  EXPECT_EQ(tight.train(2), losses);
  EXPECT_EQ(std::to_string(gpu.driver.used_bytes()), least.device_memory);
}

// Every product goes by the library, whose workspace holds nothing from one to the next.
TEST_P(CudaTraining, MultipliesByTheLibraryWithinTheBudget) {
  Outcome own;
  {
    PlayedGpu without;
    own = train(on_gpu(without), 2);
  }
  PlayedGpu gpu({.has_library = true});
  const RunOptions there = on_gpu(gpu);
  const Outcome expected = train(there, 2);
  for (size_t s = 0; s < own.losses.size(); ++s)
    EXPECT_NEAR(expected.losses[s], own.losses[s], 1e-5 * own.losses[s]);
  for (const char* const is_bf16 : {"false", "true"}) {
    RunOptions run = there;
    run.precision = is_bf16;
    const RunOptions least = offloaded(run, "cpu", false);
    std::vector<double> losses;
    {
      TrainerRun tight(least);
      losses = tight.train(2);
      EXPECT_EQ(std::to_string(gpu.driver.used_bytes()), least.device_memory);
    }
    EXPECT_EQ(losses, is_bf16 == std::string("true") ? TrainerRun(run).train(2) : expected.losses);
  }
  EXPECT_GT(gpu.library.calls("cublasLtMatmul"), 0u);
  EXPECT_TRUE(gpu.log.lines().empty()) << gpu.log.lines()[0].text;
  EXPECT_EQ(gpu.library.leftovers(), "");
}

TEST_P(CudaTraining, SkipsStepsThatOverflowFp16) {
  PlayedGpu gpu;
  RunOptions there = on_gpu(gpu);
  there.more = {{"fp16.enabled", "true", "a test"},
                {"fp16.initial_scale_power", "18", "a test"},
                {"fp16.hysteresis", "1", "a test"}};
  const Outcome expected = train(there, 3);
  EXPECT_TRUE(expected.skipped.front());
  EXPECT_FALSE(expected.skipped.back());
  expect_same(train(offloaded(there, "cpu", false), 3), expected);
  there.compute = nullptr;
  EXPECT_EQ(train(there, 3).skipped, expected.skipped);
}

TEST_P(CudaTraining, IsTheSameInStrictMode) {
  PlayedGpu gpu;
  RunOptions run = offloaded(on_gpu(gpu), "cpu", false);
  const Outcome expected = train(run, 1);
  run.more = {{"terrace.strict", "true", "a test"}};
  expect_same(train(run, 1), expected);
}

TEST_P(CudaTraining, TrainsAdaptersBesideFrozenWeights) {
  PlayedGpu gpu;
  RunOptions there = on_gpu(gpu);
  there.precision = "true";
  there.more = {{"terrace.lora.rank", "4", "a test"}};
  const Outcome expected = train(there, 2);
  expect_same(train(offloaded(there, "nvme", true), 2), expected);
  there.compute = nullptr;
  const Outcome host = train(there, 2);
  EXPECT_EQ(host.state.size(), expected.state.size());
  for (size_t s = 0; s < host.losses.size(); ++s)
    EXPECT_NEAR(expected.losses[s], host.losses[s], 1e-3 * host.losses[s]);
}

TEST_P(CudaTraining, EvaluatesAndGoesOnWithATextAsTheHost) {
  PlayedGpu gpu;
  const RunOptions run = on_gpu(gpu);
  const fs::path saved = saved_after_a_step(run);
  const std::vector<int32_t> tokens = {1, 4, 9, 3, 12, 10, 10, 12}, targets = {4, 9, 3, 12, 10, 10, 12, 3};
  const auto asked = [&](const ComputeDevice* compute, std::vector<float>& logits) {
    const TrainerOptions options = options_of(run);
    MemoryLog log;
    Inference inference(make_model(options.model, model_options(options.config)),
                        {options.config, 1, kContext, true, compute}, log);
    inference.load_checkpoint(saved);
    logits.resize(options.model.vocabulary);
    inference.next_token_logits({tokens, targets, 1, kContext}, logits);
    return inference.evaluate({tokens, targets, 1, kContext});
  };
  std::vector<float> there, here;
  EXPECT_NEAR(asked(gpu.compute.get(), there), asked(nullptr, here), 1e-5);
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 1e-5);
}

// The own kernels give a row the same bits whatever rows are beside it; of the library nobody knows.
TEST_P(CudaTraining, KeepsKeysAndValuesOnTheDevice) {
  PlayedGpu gpu;
  const RunOptions run = on_gpu(gpu);
  const fs::path saved = saved_after_a_step(run);
  const std::vector<int32_t> tokens = {1, 4, 9, 3, 12, 10, 10, 12};
  const TrainerOptions options = options_of(run);
  MemoryLog log;
  const auto inference_of = [&](bool caches) {
    auto inference = std::make_unique<Inference>(
        make_model(options.model, model_options(options.config)),
        InferenceOptions{options.config, 1, kContext, false, gpu.compute.get(), caches}, log);
    inference->load_checkpoint(saved);
    EXPECT_EQ(inference->cache().is_used, caches);
    return inference;
  };
  const auto logits_of = [&](Inference& inference, uint32_t length) {
    const std::span<const int32_t> seen = std::span<const int32_t>(tokens).first(length);
    std::vector<float> logits(options.model.vocabulary);
    inference.next_token_logits({seen, seen, 1, length}, logits);
    return logits;
  };
  std::vector<std::vector<float>> expected;
  {
    const std::unique_ptr<Inference> without = inference_of(false);
    for (uint32_t length = 3; length <= tokens.size(); ++length)
      expected.push_back(logits_of(*without, length));
  }
  const std::unique_ptr<Inference> with = inference_of(true);
  for (uint32_t length = 3; length <= tokens.size(); ++length)
    EXPECT_EQ(logits_of(*with, length), expected[length - 3]) << length << " tokens";
}

}  // namespace
}  // namespace terrace::trainer_tests::training_test
