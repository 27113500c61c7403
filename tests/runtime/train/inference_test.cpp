// Inference computes what the trainer computes, whatever the placement and the budgets.
#include <terrace/runtime/train/inference.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/runtime/model/weights/architecture.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/trainer.h>

#include "support/scratch_folder.h"

namespace terrace::inference_test {
namespace {

constexpr uint32_t kContext = 12;

ModelConfig tiny_model() {
  ModelConfig model = model_preset("gpt2");
  model.layers = 3;
  model.heads = 2;
  model.width = 32;
  model.context = kContext;
  model.vocabulary = 40;
  return model;
}

TrainConfig config_of(const std::vector<ConfigOverride>& more) {
  std::vector<ConfigOverride> overrides = {{"terrace.threads", "2", "a test"},
                                           {"bf16.enabled", "true", "a test"},
                                           {"terrace.host_memory", "64MiB", "a test"}};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return default_train_config(overrides);
}

class Counting final : public TokenSource {
 public:
  uint64_t token_count() const override { return 200; }
  void read(uint64_t first, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((first + i) * 7 % 40);
  }
  uint32_t vocabulary() const override { return 40; }
  uint64_t fingerprint() const override { return 1; }
  std::string description() const override { return "numbers"; }
  std::filesystem::path path() const override { return "numbers"; }
};

struct Answers {
  float loss = 0;
  std::vector<float> logits;
  bool operator==(const Answers&) const = default;
};

Answers ask(const std::filesystem::path& checkpoint, const TrainingData& data, TrainConfig config) {
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  config.precision = info.type;
  MemoryLog log;
  Inference inference(make_model_of(info.architecture, info.type, "a test"), {config, 2, kContext}, log);
  inference.load_checkpoint(checkpoint);
  std::vector<int32_t> tokens(2 * kContext), targets(tokens.size());
  data.fill_validation(0, 2, tokens, targets);
  const std::span<const int32_t> all = tokens;
  Answers answers;
  answers.loss = inference.evaluate({tokens, targets, 2, kContext});
  answers.logits.resize(2 * 40);
  inference.next_token_logits({all.first(10), all.first(10), 2, 5}, answers.logits);
  // The order of uses is known by now, and parameters are fetched ahead.
  EXPECT_EQ(inference.evaluate({tokens, targets, 2, kContext}), answers.loss);
  return answers;
}

TEST(Inference, ComputesTheTrainersLossWithinAnyBudget) {
  const ScratchFolder folder;
  TrainerOptions options;
  options.config = config_of(
      {{"terrace.device_memory", "16MiB", "a test"}, {"train_micro_batch_size_per_gpu", "2", "a test"}});
  options.model = tiny_model();
  OpenTokens tokens;
  tokens.train = std::make_unique<Counting>();
  const TrainingData data(std::move(tokens), {kContext, options.config.terrace.seed, 0.5});
  MemoryLog log;
  Trainer trainer(options, data, log);
  for (int step = 0; step < 3; ++step) trainer.step();
  trainer.save({folder.path(), log});

  const Answers roomy = ask(folder.path(), data, config_of({}));
  const std::string path = folder.path().string();
  for (const char* placement : {"none", "cpu", "nvme"}) {
    std::vector<ConfigOverride> overrides = {{"zero_optimization.offload_param.device", placement, "a test"},
                                             {"terrace.chunk_elements", "4096", "a test"},
                                             {"terrace.strict", "true", "a test"}};
    if (placement == std::string("nvme"))
      overrides.push_back({"zero_optimization.offload_param.nvme_path", path, "a test"});
    EXPECT_EQ(ask(folder.path(), data, config_of(overrides)), roomy) << placement;
  }
  EXPECT_EQ(roomy.loss, static_cast<float>(trainer.evaluate(2)));
}

TEST(Inference, TakesNoMemoryForGradientsAndStates) {
  MemoryLog log;
  ModelOptions options;
  options.type = DataType::bf16;
  TrainConfig config = config_of({{"zero_optimization.offload_param.device", "cpu", "a test"},
                                  {"zero_optimization.offload_optimizer.device", "cpu", "a test"},
                                  {"terrace.update", "during_backward", "a test"}});
  config.precision = DataType::bf16;
  const Inference inference(make_model(tiny_model(), options), {config, 1, kContext}, log);
  const MemoryPlan& plan = inference.plan().memory;
  EXPECT_EQ(plan.host_record_slots + plan.device_record_slots, 0u);
  EXPECT_EQ(plan.host_gradient_slots + plan.host_accumulator_slots + plan.device_accumulator_slots, 0u);
  EXPECT_EQ(inference.plan().state_bytes, 0u);
}

}  // namespace
}  // namespace terrace::inference_test
