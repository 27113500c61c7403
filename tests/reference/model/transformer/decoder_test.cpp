// What holds for every family: no bit depends on threads, on what is kept, or on how tables are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <terrace/runtime/config/parameter_groups.h>

#include "model_test_support.h"
#include "support/allocation_counter.h"

namespace terrace::testing::decoder_test {
namespace {

// Enough columns and rows for several tasks in every operation, and for three parts of a table.
TestModel small(ModelFamily family, DataType type = DataType::bf16) {
  TestModel config;
  config.family = family;
  config.layers = 3, config.heads = 4, config.width = 96, config.context = 112, config.vocabulary = 300;
  config.type = type;
  if (family == ModelFamily::gpt2) return config;
  config.key_value_heads = 2, config.hidden = 136;
  config.attention_bias = family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  config.tied_embeddings = family == ModelFamily::qwen2;
  return config;
}

// Moves as late as its promise allows, and spoils what may not be touched meanwhile.
class LateStore final : public ActivationStore {
 public:
  void start_put(uint32_t index, std::span<const float> values) override { put_[index] = values; }
  void start_get(uint32_t index, std::span<float> values) override {
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    got_[index] = values;
  }
  void wait(uint32_t index) override {
    if (const auto put = put_.extract(index)) held_[index] = {put.mapped().begin(), put.mapped().end()};
    if (const auto got = got_.extract(index)) {
      ASSERT_EQ(got.mapped().size(), held_.at(index).size());
      std::copy(held_.at(index).begin(), held_.at(index).end(), got.mapped().begin());
      held_.erase(index);
    }
  }
  size_t left_over() const { return put_.size() + got_.size() + held_.size(); }

 private:
  std::map<uint32_t, std::span<const float>> put_;
  std::map<uint32_t, std::span<float>> got_;
  std::map<uint32_t, std::vector<float>> held_;
};

class EveryFamily : public ::testing::TestWithParam<ModelFamily> {
 protected:
  TestModel model(DataType type = DataType::bf16) const { return small(GetParam(), type); }
};

void expect_same_bits(const Result& found, const Result& expected, const std::string& what) {
  EXPECT_EQ(std::memcmp(&found.loss, &expected.loss, sizeof(float)), 0) << what;
  EXPECT_EQ(found.gradients, expected.gradients) << what;
}

TEST_P(EveryFamily, HasTheSameBitsOnAnyNumberOfThreads) {
  const Tokens tokens(model(), 2, 110);
  const Result one = train(model(), tokens, 1);
  for (const size_t threads : {size_t{2}, size_t{3}}) {
    expect_same_bits(train(model(), tokens, threads), one, std::to_string(threads) + " threads");
  }
}

TEST_P(EveryFamily, HasTheSameBitsWhateverIsKept) {
  TestModel config = model();
  config.layers = 5;
  const Tokens tokens(config, 1, 100);
  const Result every_layer = train(config, tokens);
  for (const uint32_t count : {1u, 2u, 4u, 5u, 9u}) {
    config.checkpoint_count = count;
    const Result segments = train(config, tokens);
    expect_same_bits(segments, every_layer, std::to_string(count) + " segments");
    EXPECT_EQ(segments.peak_bytes == every_layer.peak_bytes, count >= 5);
    LateStore store;
    const Result stored = train(config, tokens, 2, 1.0f, &store);
    expect_same_bits(stored, every_layer, std::to_string(count) + " segments in a store");
    EXPECT_EQ(store.left_over(), 0u);
    const bool less = stored.peak_bytes < segments.peak_bytes;
    EXPECT_EQ(less, count > 1) << count;
  }
  config.checkpoint_activations = false;
  const Result everything = train(config, tokens);
  expect_same_bits(everything, every_layer, "everything kept");
  EXPECT_LT(every_layer.peak_bytes, everything.peak_bytes);
}

TEST_P(EveryFamily, HasTheSameBitsHoweverTablesAreCut) {
  for (const DataType type : {DataType::bf16, DataType::fp32}) {
    TestModel config = model(type);
    const Tokens tokens(config, 2, 60);
    const Result whole = train(config, tokens);
    for (const uint64_t rows : {128, 256}) {
      config.table_part_elements = rows * config.width;
      for (const bool late : {false, true}) {
        config.late_head_gradient = late;
        expect_same_bits(train(config, tokens), whole, std::to_string(rows) + " rows");
      }
    }
    EXPECT_EQ(config.make()->weights()[0].parts.size(), 2u);
  }
}

// So that a part's gradient is complete as soon as it is begun.
TEST_P(EveryFamily, UsesAPartOnceInBackwardWithALateHeadGradient) {
  TestModel config = model();
  config.table_part_elements = 1;
  config.late_head_gradient = true;
  const auto owner = config.make();
  EXPECT_EQ(owner->weights()[0].parts.size(), 3u);
  for (const TensorSpec& tensor : owner->tensors()) EXPECT_EQ(tensor.backward_uses, 1u) << tensor.name;
  train(config, Tokens(config, 1, 20));  // expects as many uses
}

TEST_P(EveryFamily, HasMatricesForMuonInItsLayersAlone) {
  TestModel config = model();
  for (const bool has_adapters : {false, true}) {
    if (has_adapters) config.lora = LoraOptions();
    const auto owner = config.make();
    size_t matrices = 0;
    for (const TensorSpec& tensor : owner->tensors()) {
      const bool in_layer =
          tensor.name.find(GetParam() == ModelFamily::gpt2 ? ".h." : ".layers.") != std::string::npos;
      EXPECT_EQ(is_muon_matrix(tensor), tensor.trainable && in_layer && tensor.shape.size() == 2)
          << tensor.name;
      matrices += is_muon_matrix(tensor) ? 1 : 0;
    }
    EXPECT_GT(matrices, 0u);
  }
}

TEST_P(EveryFamily, DryRunMakesTheSameUsesAndNeedsTheSameMemory) {
  for (int variant = 0; variant < 7; ++variant) {
    TestModel config = model(variant == 1 ? DataType::fp32 : variant == 2 ? DataType::fp16 : DataType::bf16);
    config.checkpoint_activations = variant != 3;
    config.checkpoint_count = variant == 4 ? 2 : 0;
    config.late_head_gradient = variant == 5;
    config.table_part_elements = variant == 5 ? 1 : uint64_t{1} << 23;
    if (variant == 6) config.frozen = {"*.1.mlp*", GetParam() == ModelFamily::gpt2 ? "*ln_1*" : "*norm*"};
    const Tokens tokens(config, 2, 60);
    LateStore store;
    const Result real = train(config, tokens, 2, 1.0f, variant == 4 ? &store : nullptr);
    EXPECT_EQ(train(config, Tokens(config, 2, 60, 99), 2, 1.0f, variant == 4 ? &store : nullptr).uses,
              real.uses);

    const auto owner = config.make();
    Workers workers(2);
    const HostOps ops(workers, best_instruction_set(), ProductType::fp32, true);
    RecordingAccess access;
    StackArena arena = StackArena::dry_run();
    ActivationRecorder recorder;
    const std::span<const int32_t> nothing(static_cast<const int32_t*>(nullptr), tokens.inputs.size());
    const MicroBatch batch{nothing, nothing, tokens.batch, tokens.sequence};
    EXPECT_EQ(
        owner->train_micro_batch(ops, access, arena, batch, 1.0f, "mb0/", variant == 4 ? &recorder : nullptr),
        0.0f);
    EXPECT_EQ(access.uses(), real.uses) << "variant " << variant;
    EXPECT_EQ(arena.peak_bytes(), real.peak_bytes) << "variant " << variant;
    EXPECT_EQ(arena.used_bytes(), 0u);
    if (variant == 4) {
      EXPECT_EQ(recorder.entry_count(), 1u);
      EXPECT_EQ(recorder.entry_bytes(), tokens.inputs.size() * config.width * sizeof(float));
    }
  }
}

TEST_P(EveryFamily, EvaluatesToTheLossOfTrainingWithInferenceUsesOnly) {
  const TestModel config = model();
  const Tokens tokens(config, 2, 64);
  const auto owner = config.make();
  InMemoryParameters parameters = parameters_of(*owner);
  Workers workers(2);
  WorkMemory work(kWorkBytes);
  const HostOps ops(workers, best_instruction_set());
  EXPECT_EQ(owner->evaluate(ops, parameters, work.arena(), tokens.view(), "eval/"),
            train(config, tokens).loss);
  for (const RecordedUse& use : parameters.uses()) EXPECT_EQ(use.kind, UseKind::inference) << use.operation;

  RecordingAccess access;
  StackArena dry = StackArena::dry_run();
  owner->evaluate(HostOps(workers, best_instruction_set(), ProductType::fp32, true), access, dry,
                  tokens.view(), "eval/");
  EXPECT_EQ(access.uses(), parameters.uses());
  EXPECT_EQ(dry.peak_bytes(), work.arena().peak_bytes());
}

// The loss of the last token of a sequence is what the mean loss of n tokens has over that of n - 1.
TEST_P(EveryFamily, GivesTheLogitsOfTheNextToken) {
  TestModel config = model(DataType::fp32);
  config.table_part_elements = 1;
  config.init_std = 0.1f;
  const auto owner = config.make();
  InMemoryParameters parameters = parameters_of(*owner);
  Workers workers(2);
  WorkMemory work(kWorkBytes);
  const HostOps ops(workers, best_instruction_set());
  const uint32_t length = 9;
  const Tokens tokens(config, 2, length);
  std::vector<float> logits(2 * config.vocabulary);
  owner->next_token_logits(ops, parameters, work.arena(), tokens.view(), logits, "next/");
  for (const RecordedUse& use : parameters.uses()) EXPECT_EQ(use.kind, UseKind::inference) << use.operation;
  const uint64_t peak_bytes = work.arena().peak_bytes();
  const std::vector<RecordedUse> uses = parameters.uses();
  for (uint32_t sample = 0; sample < 2; ++sample) {
    const auto sum_of_losses = [&](uint32_t count) {
      const std::span<const int32_t> inputs(tokens.inputs), targets(tokens.targets);
      const MicroBatch some{inputs.subspan(sample * length, count), targets.subspan(sample * length, count),
                            1, count};
      return static_cast<double>(owner->evaluate(ops, parameters, work.arena(), some, "")) * count;
    };
    const auto row = logits.begin() + sample * static_cast<long>(config.vocabulary);
    double sum = 0;
    for (uint32_t id = 0; id < config.vocabulary; ++id) sum += std::exp(row[id]);
    const double expected = std::log(sum) - row[tokens.targets[(sample + 1) * length - 1]];
    EXPECT_NEAR(sum_of_losses(length) - sum_of_losses(length - 1), expected, 1e-4);
  }
  RecordingAccess access;
  StackArena dry = StackArena::dry_run();
  owner->next_token_logits(HostOps(workers, best_instruction_set(), ProductType::fp32, true), access, dry,
                           tokens.view(), logits, "next/");
  EXPECT_EQ(access.uses(), uses);
  EXPECT_EQ(dry.peak_bytes(), peak_bytes);
}

TEST_P(EveryFamily, LearnsASequenceByHeart) {
  TestModel config = model(DataType::fp32);
  config.layers = 1;
  config.init_std = 0.05f;
  const auto owner = config.make();
  const Tokens tokens(config, 1, 9);
  InMemoryParameters parameters = parameters_of(*owner);
  Workers workers(1);
  WorkMemory work(kWorkBytes);
  const HostOps ops(workers, best_instruction_set());
  float loss = 0;
  for (int step = 0; step < 150; ++step) {
    parameters.begin_micro_batch();
    loss = owner->train_micro_batch(ops, parameters, work.arena(), tokens.view(), 1.0f, "mb0/");
    for (uint32_t i = 0; i < parameters.tensors().size(); ++i) {
      std::vector<float> values = parameters.parameter_values(TensorId{i});
      const std::vector<float> gradient = parameters.gradient_values(TensorId{i});
      for (size_t k = 0; k < values.size(); ++k) values[k] -= 0.1f * gradient[k];
      const std::vector<std::byte> bytes = bytes_from(values, config.type);
      std::copy(bytes.begin(), bytes.end(), parameters.parameter_bytes(TensorId{i}).begin());
    }
  }
  EXPECT_LT(loss, 0.1f);
}

// Memory comes from the arena and keys from the stack.
TEST_P(EveryFamily, AllocatesNothingInAMicroBatch) {
  const TestModel config = model();
  const auto owner = config.make();
  uint64_t largest_bytes = 0;
  for (const TensorSpec& tensor : owner->tensors()) {
    largest_bytes = std::max(largest_bytes, tensor.element_count() * bytes_of(config.type));
  }
  SilentAccess access(largest_bytes);
  const Tokens tokens(config, 1, 100);
  Workers workers(1);
  WorkMemory work(kWorkBytes);
  const HostOps ops(workers, best_instruction_set());
  owner->train_micro_batch(ops, access, work.arena(), tokens.view(), 1.0f, "mb0/");
  const uint64_t before = allocations_of_this_thread();
  owner->train_micro_batch(ops, access, work.arena(), tokens.view(), 1.0f, "mb0/");
  EXPECT_EQ(allocations_of_this_thread(), before);
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamily,
                         ::testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::qwen2),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace terrace::testing::decoder_test
