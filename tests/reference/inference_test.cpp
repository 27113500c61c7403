// Inference computes what the trainer computes, whatever the placement and the budgets.
#include <terrace/reference/inference.h>

#include <gtest/gtest.h>

#include <optional>

#include <terrace/base/error.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/weights/architecture.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

#include "support/in_memory_parameters.h"
#include "support/scratch_folder.h"
#include "support/work_memory.h"

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

void expect_the_trainers_loss_within_any_budget(std::vector<ConfigOverride> settings) {
  const ScratchFolder folder;
  TrainerOptions options;
  settings.push_back({"terrace.device_memory", "16MiB", "a test"});
  settings.push_back({"train_micro_batch_size_per_gpu", "2", "a test"});
  options.config = config_of(settings);
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

TEST(Inference, ComputesTheTrainersLossWithinAnyBudget) {
  expect_the_trainers_loss_within_any_budget({});
}

TEST(Inference, ComputesTheTrainersLossWithTheCodesOfABase) {
  for (const char* code : {"nf4", "int8"}) {
    expect_the_trainers_loss_within_any_budget(
        {{"terrace.lora.rank", "4", "a test"}, {"terrace.quantize_base", code, "a test"}});
  }
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

// What generation asks: a text that grows by the token that follows, and slides when it is too long.
class Generation {
 public:
  explicit Generation(const InferenceOptions& options, ModelConfig model = tiny_model()) {
    const ScratchFolder folder;
    TrainerOptions trained;
    trained.config = config_of({{"terrace.device_memory", "16MiB", "a test"}});
    trained.model = model;
    OpenTokens tokens;
    tokens.train = std::make_unique<Counting>();
    const TrainingData data(std::move(tokens), {kContext, trained.config.terrace.seed, 0.5});
    Trainer trainer(trained, data, log_);
    trainer.save({folder.path(), log_});
    InferenceOptions with_type = options;
    with_type.config.precision = DataType::bf16;
    ModelOptions model_options;
    model_options.type = DataType::bf16;
    inference_.emplace(make_model(model, model_options), with_type, log_);
    inference_->load_checkpoint(folder.path());
  }

  Inference& inference() { return *inference_; }
  const Inference& inference() const { return *inference_; }

  // The logits after `length` tokens of each of `batch` sequences, from the token `first` on.
  std::vector<float> logits(uint32_t first, uint32_t length, uint32_t batch = 2) {
    std::vector<int32_t> tokens;
    for (uint32_t sample = 0; sample < batch; ++sample) {
      for (uint32_t i = 0; i < length; ++i)
        tokens.push_back(static_cast<int32_t>((first + i) * (sample + 3) % 40));
    }
    std::vector<float> logits(size_t{batch} * 40);
    inference_->next_token_logits({tokens, tokens, batch, length}, logits);
    return logits;
  }

 private:
  MemoryLog log_;
  std::optional<Inference> inference_;
};

InferenceOptions generating(const std::vector<ConfigOverride>& more, bool caches) {
  return {config_of(more), 2, kContext, false, nullptr, caches};
}

ModelConfig rotary_model() {
  ModelConfig model = tiny_model();
  model.family = ModelFamily::llama;
  model.key_value_heads = 1;
  model.attention_bias = model.output_bias = model.mlp_bias = false;
  model.rope = {.kind = RopeScalingKind::dynamic, .factor = 2.0, .original_context = 7};
  return model;
}

TEST(Inference, GivesTheSameLogitsWithACache) {
  const ScratchFolder folder;
  const std::string path = folder.path().string();
  for (const ModelConfig& model : {tiny_model(), rotary_model()}) {
    Generation without(generating({}, false), model);
    EXPECT_FALSE(without.inference().cache().is_used);
    EXPECT_EQ(without.inference().cache().bytes, 0u);
    for (const char* placement : {"none", "cpu", "nvme"}) {
      std::vector<ConfigOverride> overrides = {
          {"zero_optimization.offload_param.device", placement, "a test"},
          {"terrace.chunk_elements", "4096", "a test"},
          {"terrace.strict", "true", "a test"}};
      if (placement == std::string("nvme"))
        overrides.push_back({"zero_optimization.offload_param.nvme_path", path, "a test"});
      Generation with(generating(overrides, true), model);
      EXPECT_TRUE(with.inference().cache().is_used);
      const auto expect_the_same = [&](uint32_t first, uint32_t length, uint32_t batch = 2) {
        EXPECT_EQ(with.logits(first, length, batch), without.logits(first, length, batch))
            << length << " from " << first << ", " << placement;
      };
      for (uint32_t length = 3; length <= kContext; ++length) expect_the_same(0, length);
      expect_the_same(0, kContext);                                                   // the same once more
      for (uint32_t first = 1; first < 4; ++first) expect_the_same(first, kContext);  // slides
      expect_the_same(3, 6);  // a beginning of the last one
      expect_the_same(5, 9);
      expect_the_same(3, 6);
      expect_the_same(3, 6, 1);  // fewer sequences, and all again
      expect_the_same(3, 7, 1);
      expect_the_same(3, 8);
    }
  }
}

// What the model needs when it runs: the cache, all tokens at once, and the last one alone.
TEST(Inference, PlansTheWorkMemoryThatACacheTakes) {
  for (const ModelConfig& config : {tiny_model(), rotary_model()}) {
    ModelOptions options;
    options.type = DataType::bf16;
    InferenceOptions asked = generating({}, true);
    asked.config.precision = options.type;
    MemoryLog log;
    const Inference inference(make_model(config, options), asked, log);
    const auto model = make_model(config, options);
    const uint32_t held = std::min(kContext, model->cacheable_tokens());
    testing::InMemoryParameters parameters(model->tensors(),
                                           [&](TensorId tensor, uint64_t first, std::span<float> out) {
                                             model->initial_values(tensor, first, out);
                                           });
    testing::WorkMemory work(16 * kMiB);
    Workers workers(2);
    const HostOps ops(workers, best_instruction_set());
    KeyValueCache cache = model->make_cache(work.arena(), 2, held);
    EXPECT_EQ(inference.cache().bytes, cache.bytes());
    std::vector<float> logits(2 * 40);
    const auto run = [&](uint32_t count, KeyValueCache* into) {
      const std::vector<int32_t> tokens(size_t{2} * count, 5);
      model->next_token_logits(ops, parameters, work.arena(), {tokens, tokens, 2, count}, logits, "", into);
    };
    run(held, &cache);
    cache.hold(held - 1);
    run(1, &cache);
    run(kContext, nullptr);
    EXPECT_EQ(inference.plan().memory.work_bytes, round_up(work.arena().peak_bytes(), 4096));
  }
}

TEST(Inference, GoesOnWithoutACacheWhereTheBudgetIsOneByteShort) {
  const auto options_of = [](uint64_t device_bytes) {
    return generating({{"terrace.device_memory", std::to_string(device_bytes), "a test"},
                       {"zero_optimization.offload_param.device", "cpu", "a test"}},
                      true);
  };
  uint64_t least = 0;  // without a cache
  try {
    const Generation nothing_fits(options_of(4096));
  } catch (const ShortageError& shortage) {
    least = shortage.tiers().front().needed_bytes;
  }
  ASSERT_GT(least, 0u);
  Generation without(options_of(least));
  const CacheOutcome missing = without.inference().cache();
  EXPECT_FALSE(missing.is_used);
  EXPECT_EQ(missing.bytes, sizeof(float) * 3 * 2 * 2 * kContext * 32);
  ASSERT_GE(missing.device_needed_bytes, least);
  Generation short_of_one(options_of(missing.device_needed_bytes - 1));
  EXPECT_FALSE(short_of_one.inference().cache().is_used);
  // It holds more parameters than the least, and what it names holds these and the cache.
  const CacheOutcome more = short_of_one.inference().cache();
  EXPECT_GT(more.device_needed_bytes, missing.device_needed_bytes);
  Generation beside(options_of(more.device_needed_bytes));
  EXPECT_TRUE(beside.inference().cache().is_used);
  const auto held = [](const Generation& of) {
    const MemoryPlan& plan = of.inference().plan().memory;
    return plan.device_slots * plan.slot_bytes;
  };
  EXPECT_EQ(held(beside), held(short_of_one));
  EXPECT_GT(held(short_of_one), held(without));
  Generation with(options_of(missing.device_needed_bytes));
  EXPECT_TRUE(with.inference().cache().is_used);
  EXPECT_EQ(with.inference().cache().device_needed_bytes, 0u);
  for (uint32_t length = 4; length < 8; ++length)
    EXPECT_EQ(with.logits(0, length), without.logits(0, length));
}

}  // namespace
}  // namespace terrace::inference_test
