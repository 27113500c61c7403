// Micro-batches layer by layer: the bits are those of one micro-batch after the other, and the parameters
// cross each link once per step and direction instead of once per micro-batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/reference/model/compute/host_ops.h>

#include "laws/plain_training.h"
#include "support/offloaders.h"
#include "support/scratch_folder.h"

namespace terrace::laws::layer_major_law_test {
namespace {

struct Scene {
  ModelFamily family = ModelFamily::gpt2;
  Placement parameters = Placement::cpu;
  uint32_t accumulation = 8;
  bool store_activations = false;
  uint32_t checkpoint_count = 0;
  uint64_t chunk_elements = 2 * kTileElements;
  double device_layers = 2;  // how many layers' parameters and gradients the device holds beside what it must
};

struct Trained {
  std::vector<uint32_t> losses;
  std::vector<uint64_t> norms;
  std::vector<std::byte> records;
  OffloadCounters moved;  // in the last step
  TrafficBound bound;
  MemoryPlan plan;
};

ModelConfig config_of(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.layers = 8;
  config.heads = 4;
  config.width = 48;
  config.context = 12;
  config.vocabulary = 150;
  config.init_std = 0.1f;
  if (family == ModelFamily::gpt2) return config;
  config.key_value_heads = 2, config.head_size = 12, config.hidden = 112;
  config.attention_bias = config.output_bias = config.mlp_bias = config.tied_embeddings = false;
  return config;
}

Trained train(const Scene& scene, bool layer_major) {
  ModelOptions model_options;
  model_options.seed = 3;
  model_options.checkpoint_count = scene.checkpoint_count;
  model_options.late_head_gradient = layer_major;
  model_options.table_part_elements = 6144;  // a table of two parts
  const std::unique_ptr<Model> model = make_model(config_of(scene.family), model_options);
  const FlatSpace space(model->tensors(), scene.chunk_elements);
  Workers workers(2);
  const DryRun dry =
      run_dry(*model, scene.accumulation, workers,
              scene.store_activations ? ActivationOffload::cpu : ActivationOffload::none, layer_major);
  const ScratchFolder folder;
  OffloadOptions options;
  options.parameters = scene.parameters;
  options.states = Placement::nvme;
  options.parameter_paths = options.state_paths = {{folder.path()}};
  options.io.kind = io::EngineKind::threads;
  options.work_bytes = dry.work_bytes;
  options.activation_entries = dry.activation_entries;
  options.activation_entry_bytes = dry.activation_entry_bytes;
  options.micro_batches = scene.accumulation;
  options.layer_major = layer_major;
  const MemoryPlan roomy = testing::plan_roomy(options, space, dry.trace);
  const double layer_bytes = static_cast<double>(roomy.slot_bytes) * space.chunk_count() / 8;
  options.device_budget_bytes =
      roomy.device_minimum_bytes + static_cast<uint64_t>(scene.device_layers * layer_bytes);
  options.host_budget_bytes = roomy.host_holding_bytes;
  MemoryLog log;
  SimulatedDevice device({options.device_budget_bytes, true, 0, 0});
  Offloader offloader(space, options, dry.trace, device, workers, log);
  offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    model->initial_values(tensor, first, values);
  });
  const HostOps ops(workers, best_instruction_set());
  StackArena arena(offloader.work_memory());
  Trained trained;
  trained.plan = offloader.plan();
  const float scale = 1.0f / static_cast<float>(scene.accumulation);
  for (uint64_t step = 1; step <= 2; ++step) {
    const OffloadCounters before = offloader.report().counters();
    LayerMajorBatch batch(model->config(), step, StepRounds{scene.accumulation});
    offloader.begin_step();
    if (layer_major)
      model->train_layer_major(ops, offloader, arena, batch.runs, scale, offloader.activations());
    for (MicroBatchRun& run : batch.runs) {
      if (layer_major) break;
      run.loss = model->train_micro_batch(ops, offloader, arena, run.batch, scale, run.operation_prefix,
                                          offloader.activations());
      offloader.end_micro_batch();
    }
    if (layer_major) offloader.end_micro_batch();
    for (const MicroBatchRun& run : batch.runs) trained.losses.push_back(std::bit_cast<uint32_t>(run.loss));
    const std::vector<OptimizerSettings> groups = settings(step);
    trained.norms.push_back(std::bit_cast<uint64_t>(offloader.update({groups, step, 0.5}).gradient_norm));
    trained.moved = offloader.report().counters() - before;
  }
  trained.bound = offloader.report().traffic_bound();
  EXPECT_LE(device.peak_bytes(), options.device_budget_bytes);
  trained.records = testing::records_of(offloader);
  return trained;
}

void expect_same_bits(const Trained& expected, const Trained& found) {
  EXPECT_EQ(expected.losses, found.losses);
  EXPECT_EQ(expected.norms, found.norms);
  EXPECT_TRUE(expected.records == found.records);
}

TEST(LayerMajorLaw, TheBitsAreThoseOfOneMicroBatchAfterTheOther) {
  for (const Scene& scene :
       {Scene{}, Scene{.family = ModelFamily::llama, .parameters = Placement::nvme, .accumulation = 3},
        Scene{.family = ModelFamily::qwen3, .accumulation = 3, .checkpoint_count = 3},
        Scene{.accumulation = 2, .store_activations = true},
        Scene{.accumulation = 5, .store_activations = true, .checkpoint_count = 3},
        Scene{.accumulation = 4,
        .checkpoint_count = 3,
        .chunk_elements = 16 * kTileElements,
        .device_layers = 0},
        Scene{.family = ModelFamily::llama,
        .accumulation = 6,
        .store_activations = true,
        .checkpoint_count = 1},
        Scene{.family = ModelFamily::llama, .chunk_elements = kTileElements, .device_layers = 0}}) {
    SCOPED_TRACE(fmt::format("{} micro-batches, {} checkpoints, chunks of {}, activations {}",
                             scene.accumulation, scene.checkpoint_count, scene.chunk_elements,
                             scene.store_activations ? "stored" : "kept"));
    expect_same_bits(train(scene, false), train(scene, true));
  }
}

// Eight micro-batches of eight layers, two of which the device holds: what moves of parameters is an eighth,
// and a little more, since the order that moves more also finds more on the device.
TEST(LayerMajorLaw, ParametersMoveASixthOfTheirBytesOrLess) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      const Scene scene{.family = family, .parameters = parameters};
      const OffloadCounters plain = train(scene, false).moved;
      const Trained by_layer = train(scene, true);
      const OffloadCounters moved = by_layer.moved;
      SCOPED_TRACE(fmt::format("{} of {} bytes to the device, {} of {} read", moved.h2d_bytes,
                               plain.h2d_bytes, moved.param_read_bytes, plain.param_read_bytes));
      EXPECT_LE(moved.h2d_bytes * 6, plain.h2d_bytes);
      EXPECT_LE(moved.param_read_bytes * 6, plain.param_read_bytes);
      EXPECT_EQ(moved.param_read_bytes > 0, parameters == Placement::nvme);
      EXPECT_EQ(moved.d2h_bytes, plain.d2h_bytes) << "every gradient leaves once per micro-batch";
      EXPECT_GE(moved.h2d_bytes, by_layer.bound.h2d_bytes);
    }
  }
}

}  // namespace
}  // namespace terrace::laws::layer_major_law_test
