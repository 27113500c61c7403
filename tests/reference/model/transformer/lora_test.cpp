// Models with low-rank adapters: which tensors they have, and what they compute.
#include <terrace/reference/model/transformer/model.h>

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/compute/host_ops.h>

#include "support/in_memory_parameters.h"
#include "support/work_memory.h"

namespace terrace::testing::lora_test {
namespace {

ModelConfig config_of(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.layers = 2, config.heads = 4, config.width = 24, config.context = 9, config.vocabulary = 31;
  config.init_std = 0.2f;
  if (family == ModelFamily::gpt2) return config;
  config.key_value_heads = 2, config.hidden = 40;
  config.attention_bias = family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  return config;
}

ModelOptions lora_options(std::vector<std::string> targets = {}) {
  ModelOptions options;
  options.type = DataType::fp32;
  options.lora = LoraOptions{.rank = 3, .alpha = 6, .targets = std::move(targets)};
  return options;
}

// Adapters that have been trained: no matrix is 0.
void trained_values(const Model& model, TensorId tensor, uint64_t first, std::span<float> out) {
  model.initial_values(tensor, first, out);
  for (const AdapterSpec& adapter : model.adapters()) {
    if (adapter.b != tensor) continue;
    fill_normal({.seed = 9, .stream = index_of(tensor)}, first, 0.3f, out);
  }
}

class Pass {
 public:
  explicit Pass(const Model& model) : model_(model) {
    const uint32_t context = model.config().context;
    for (uint32_t i = 0; i < 2 * context; ++i) {
      tokens_.push_back(static_cast<int32_t>(random_bits({.seed = 1, .stream = 0}, i) % 31));
      targets_.push_back(static_cast<int32_t>(random_bits({.seed = 1, .stream = 1}, i) % 31));
    }
  }
  MicroBatch batch() const { return {tokens_, targets_, 2, model_.config().context}; }
  float train(InMemoryParameters& parameters) {
    parameters.begin_micro_batch();
    return model_.train_micro_batch(HostOps(workers_, best_instruction_set()), parameters, work_.arena(),
                                    batch(), 1.0f, "");
  }
  float loss(InMemoryParameters& parameters) {
    return model_.evaluate(HostOps(workers_, best_instruction_set()), parameters, work_.arena(), batch(), "");
  }

 private:
  const Model& model_;
  Workers workers_{2};
  WorkMemory work_{16 * kMiB};
  std::vector<int32_t> tokens_, targets_;
};

class Lora : public ::testing::TestWithParam<ModelFamily> {};

TEST_P(Lora, TrainsTheAdaptersAlone) {
  const auto model = make_model(config_of(GetParam()), lora_options({"*"}));
  const std::vector<TensorSpec> tensors = model->tensors();
  const size_t linear_count = GetParam() == ModelFamily::gpt2 ? 4 : 7;
  EXPECT_EQ(model->adapters().size(), 2 * linear_count);
  std::vector<bool> adapter(tensors.size());
  for (const AdapterSpec& spec : model->adapters()) {
    adapter[index_of(spec.a)] = adapter[index_of(spec.b)] = true;
    EXPECT_EQ(tensors[index_of(spec.a)].shape, (std::vector<uint64_t>{3, spec.inputs}));
    EXPECT_EQ(tensors[index_of(spec.b)].shape, (std::vector<uint64_t>{spec.outputs, 3}));
    EXPECT_EQ(model->weights()[spec.weight].name, spec.module + ".weight");
    EXPECT_EQ(spec.scale, 2.0f);
  }
  for (size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(tensors[t].trainable, adapter[t]) << tensors[t].name;
  for (const WeightSpec& weight : model->weights()) {
    for (const TensorId part : weight.parts) EXPECT_FALSE(adapter[index_of(part)]);
  }
}

TEST_P(Lora, StartsAsTheModelThatItAdapts) {
  const auto plain = make_model(config_of(GetParam()), {.type = DataType::fp32});
  const auto adapted = make_model(config_of(GetParam()), lora_options({"*"}));
  const auto loss_of = [](const Model& model) {
    InMemoryParameters parameters(model.tensors(),
                                  [&](TensorId tensor, uint64_t first, std::span<float> out) {
                                    model.initial_values(tensor, first, out);
                                  });
    return Pass(model).loss(parameters);
  };
  EXPECT_EQ(loss_of(*adapted), loss_of(*plain));
}

TEST_P(Lora, HasTheGradientsOfItsLoss) {
  const auto model = make_model(config_of(GetParam()), lora_options({"*"}));
  InMemoryParameters parameters(model->tensors(), [&](TensorId tensor, uint64_t first, std::span<float> out) {
    trained_values(*model, tensor, first, out);
  });
  Pass run(*model);
  EXPECT_EQ(run.train(parameters), run.loss(parameters));
  constexpr float kStep = 1e-2f;
  for (const AdapterSpec& adapter : model->adapters()) {
    for (const TensorId tensor : {adapter.a, adapter.b}) {
      const std::vector<float> gradient = parameters.gradient_values(tensor);
      auto* const values = reinterpret_cast<float*>(parameters.parameter_bytes(tensor).data());
      for (uint64_t e = 0; e < gradient.size(); e += gradient.size() / 5 + 1) {
        const float value = values[e];
        values[e] = value + kStep;
        const float above = run.loss(parameters);
        values[e] = value - kStep;
        const float below = run.loss(parameters);
        values[e] = value;
        EXPECT_NEAR(gradient[e], (above - below) / (2 * kStep), 2e-4f + 0.01f * std::abs(gradient[e]))
            << model->tensors()[index_of(tensor)].name << " " << e;
      }
    }
  }
}

TEST_P(Lora, ComputesWhatTheMergedModelComputes) {
  const auto adapted = make_model(config_of(GetParam()), lora_options());
  const auto plain = make_model(config_of(GetParam()), {.type = DataType::fp32});
  InMemoryParameters with_adapters(adapted->tensors(),
                                   [&](TensorId tensor, uint64_t first, std::span<float> out) {
                                     trained_values(*adapted, tensor, first, out);
                                   });
  InMemoryParameters merged(plain->tensors(), [&](TensorId tensor, uint64_t first, std::span<float> out) {
    plain->initial_values(tensor, first, out);
  });
  for (const AdapterSpec& adapter : adapted->adapters()) {
    const TensorId weight = plain->weights()[adapter.weight].parts.front();
    const std::span<std::byte> bytes = merged.parameter_bytes(weight);
    merge_adapter(adapter, with_adapters.parameter_values(adapter.a),
                  with_adapters.parameter_values(adapter.b), 0,
                  {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)});
  }
  const float start = [&] {
    InMemoryParameters parameters(plain->tensors(),
                                  [&](TensorId tensor, uint64_t first, std::span<float> out) {
                                    plain->initial_values(tensor, first, out);
                                  });
    return Pass(*plain).loss(parameters);
  }();
  const float loss = Pass(*adapted).loss(with_adapters);
  EXPECT_NEAR(Pass(*plain).loss(merged), loss, 1e-5f * loss);
  EXPECT_GT(std::abs(loss - start), 1e-3f);
}

TEST_P(Lora, RefusesTargetsThatNothingHas) {
  try {
    make_model(config_of(GetParam()), lora_options({"*.attention"}));
    FAIL() << "no layer is called so";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("*.attention"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Lora,
                         ::testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::qwen2),
                         [](const auto& family) { return std::string(name_of(family.param)); });

}  // namespace
}  // namespace terrace::testing::lora_test
