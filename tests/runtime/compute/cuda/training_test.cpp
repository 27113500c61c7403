// Trainings through the CUDA back end without a GPU: CudaDevice on the fake driver, and the kernels on the
// emulator, as tasks of the fake driver's streams. So a kernel runs when its stream comes to it, long after
// it was asked for, and a copy that does not wait for it has other bytes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/runtime/compute/cuda/internal/cuda_compute.h>
#include <terrace/runtime/inference.h>

#include "emulator.h"
#include "memory/fake_cuda_driver.h"
#include "runtime/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace::trainer_tests {
namespace {

using terrace::testing::FakeCudaDriver;
using terrace::testing::FakeCudaOptions;

// A GPU that is played.
struct PlayedGpu {
  explicit PlayedGpu(FakeCudaOptions options = {}) : driver(options), gpu(FakeCudaDriver::table(), 0, log) {
    emulator::set_streams([this](void* stream, std::function<void()> kernel) {
      driver.run_kernel(static_cast<CUstream>(stream), std::move(kernel));
    });
    compute = make_cuda_compute(gpu);
  }
  ~PlayedGpu() { emulator::set_streams({}); }
  PlayedGpu(const PlayedGpu&) = delete;
  PlayedGpu& operator=(const PlayedGpu&) = delete;

  FakeCudaDriver driver;
  MemoryLog log;
  CudaGpu gpu;
  std::unique_ptr<ComputeDevice> compute;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::byte> state;  // master weights and moments
};

Outcome train(const RunOptions& options, uint64_t steps = 3) {
  TrainerRun run(options);
  Outcome outcome;
  for (uint64_t s = 0; s < steps; ++s) {
    const StepReport report = run.trainer->step();
    outcome.losses.push_back(report.loss);
    outcome.norms.push_back(report.gradient_norm);
  }
  outcome.state = run.state();
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(actual.state == expected.state) << "master weights or moments";
}

class CudaTraining : public ::testing::TestWithParam<const char*> {
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
  const toy::ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Families, CudaTraining, ::testing::Values("gpt2", "llama-3.2-1b"),
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

TEST_P(CudaTraining, KeepsItsBudgetToTheByteAndWaitsForNoStream) {
  PlayedGpu gpu;
  const RunOptions least = offloaded(on_gpu(gpu), "cpu", false);
  {
    TrainerRun run(least);
    run.trainer->step();
    EXPECT_EQ(gpu.driver.used_bytes(), run.trainer->plan().memory.device_bytes);
    EXPECT_EQ(std::to_string(gpu.driver.used_bytes()), least.device_memory);
    EXPECT_EQ(run.trainer->device_peak_bytes(), gpu.driver.used_bytes());
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

TEST_P(CudaTraining, GoesOnFromTheLastEpochWhenTheGpuFails) {
  std::vector<double> expected;
  {
    PlayedGpu gpu;
    expected = TrainerRun(on_gpu(gpu)).train(3);
  }
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost ? "the device is lost" : "a copy fails");
    const toy::ScratchFolder folder;
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
  PlayedGpu gpu({.granularity_bytes = 64 * 1024});
  RunOptions run = on_gpu(gpu);
  terrace::testing::expect_error(ErrorKind::config, {"16384"}, [&] { plan_training(options_of(run)); });
  run.chunk_elements = "16384";
  const std::vector<double> losses = train(run, 2).losses;
  const RunOptions least = offloaded(run, "cpu", false);
  TrainerRun tight(least);
  EXPECT_EQ(tight.train(2), losses);
  EXPECT_EQ(std::to_string(gpu.driver.used_bytes()), least.device_memory);
}

TEST_P(CudaTraining, EvaluatesAndGoesOnWithATextAsTheHost) {
  PlayedGpu gpu;
  RunOptions run = on_gpu(gpu);
  fs::path saved;
  {
    TrainerRun trained(run);
    trained.train(1);
    saved = trained.trainer->save(folder_.path());
  }
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

}  // namespace
}  // namespace terrace::trainer_tests
