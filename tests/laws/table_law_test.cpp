// A model may have tables of the vocabulary that are larger than the device: the bits stay those of a run
// with everything on it.
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include <terrace/memory/device/simulated_device.h>
#include <terrace/reference/model/compute/host_ops.h>

#include "laws/placement_law.h"
#include "laws/plain_training.h"
#include "support/offloaders.h"
#include "support/scratch_folder.h"

namespace terrace::laws::table_law_test {
namespace {

constexpr uint64_t kChunkElements = 4 * kTileElements;

ModelConfig large_vocabulary(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.layers = 2, config.heads = 2, config.width = 64, config.hidden = 96;
  config.context = 16, config.vocabulary = 24000;
  config.init_std = 0.1f;
  if (family == ModelFamily::gpt2) return config;
  config.key_value_heads = 1;
  config.attention_bias = family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  config.tied_embeddings = family == ModelFamily::qwen2;
  return config;
}

struct Trained {
  Outcome outcome;
  uint64_t device_bytes = 0;
};

// With parameters and gradients on the device, or with the least device and host memory that the plan allows.
Trained train(const ModelConfig& config, const ModelOptions& how, bool everything_on_device,
              const std::filesystem::path& folder) {
  const std::unique_ptr<Model> model = make_model(config, how);
  const FlatSpace space(model->tensors(), kChunkElements);
  Workers workers(2);
  const DryRun dry = run_dry(*model, 1, workers);
  OffloadOptions options;
  options.parameters = everything_on_device ? Placement::none : Placement::cpu;
  options.states = everything_on_device ? Placement::none : Placement::cpu;
  options.parameter_paths = options.state_paths = {{folder}};
  options.work_bytes = dry.work_bytes;
  if (everything_on_device) {
    testing::plan_roomy(options, space, dry.trace);
  } else {
    testing::take_least_budgets(options, space, dry.trace);
  }
  MemoryLog log;
  SimulatedDevice device({options.device_budget_bytes, true, 0, 0});
  Offloader offloader(space, options, dry.trace, device, workers, log);
  offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    model->initial_values(tensor, first, values);
  });
  const HostOps ops(workers, best_instruction_set());
  StackArena arena(offloader.work_memory());
  Trained run;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    offloader.begin_step();
    const TokenBatch tokens(config, step);
    run.outcome.losses.push_back(std::bit_cast<uint32_t>(
        model->train_micro_batch(ops, offloader, arena, tokens.view(), 1.0f, micro_batch_prefix(0))));
    offloader.end_micro_batch();
    const std::vector<OptimizerSettings> groups = settings(step);
    const UpdateResult result = offloader.update({groups, step, 1.0});
    run.outcome.gradient_norms.push_back(std::bit_cast<uint64_t>(result.gradient_norm));
  }
  run.outcome.parameters = testing::parameters_of(offloader, space);
  run.outcome.records = testing::records_of(offloader);
  run.device_bytes = device.peak_bytes();
  return run;
}

class TableLaw : public ::testing::TestWithParam<ModelFamily> {};

TEST_P(TableLaw, TablesLargerThanTheDeviceTrainWithTheSameBits) {
  const ScratchFolder folder;
  const ModelConfig config = large_vocabulary(GetParam());
  const uint64_t table_bytes = uint64_t{config.vocabulary} * config.width * bytes_of(DataType::bf16);
  const Trained everything = train(config, {.type = DataType::bf16}, true, folder.path());
  EXPECT_GT(everything.device_bytes, table_bytes);

  ModelOptions in_parts{.type = DataType::bf16};
  in_parts.table_part_elements = 512 * uint64_t{config.width};
  in_parts.late_head_gradient = true;
  const Trained tight = train(config, in_parts, false, folder.path());
  EXPECT_LT(tight.device_bytes, table_bytes);
  EXPECT_EQ(difference(everything.outcome, tight.outcome), "");
}

// Frozen weights are leased in the backward pass too, and come and go.
TEST_P(TableLaw, FrozenWeightsTrainTheOthersWithTheSameBits) {
  const ScratchFolder folder;
  const ModelConfig config = large_vocabulary(GetParam());
  ModelOptions how{.type = DataType::bf16};
  how.frozen = {GetParam() == ModelFamily::gpt2 ? "*wte*" : "*embed*", "*.0.*", "*.1.*mlp*"};
  const Trained everything = train(config, how, true, folder.path());
  how.table_part_elements = 512 * uint64_t{config.width};
  const Trained tight = train(config, how, false, folder.path());
  EXPECT_LT(tight.device_bytes, everything.device_bytes);
  EXPECT_EQ(difference(everything.outcome, tight.outcome), "");
}

INSTANTIATE_TEST_SUITE_P(Families, TableLaw,
                         ::testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::qwen2),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace terrace::laws::table_law_test
