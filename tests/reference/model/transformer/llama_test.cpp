// The Llama family against double precision.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <terrace/reference/model/transformer/internal/rotary.h>

#include "../compute/reference_ops.h"
#include "model_test_support.h"
#include "support/sanitized.h"

namespace terrace::testing::llama_test {
namespace {

using reference::Values;

TestModel tiny(ModelFamily family = ModelFamily::llama) {
  TestModel config;
  config.family = family;
  config.layers = 2, config.heads = 4, config.key_value_heads = 2, config.head_size = 6, config.width = 20;
  config.hidden = 28, config.context = 9, config.vocabulary = 23;
  config.rope_theta = 100.0;
  config.attention_bias = family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  config.tied_embeddings = family == ModelFamily::qwen2;
  config.norm_epsilon = 1e-3f;
  config.type = DataType::fp32;
  config.init_std = 0.2f;  // large enough for every part to matter
  return config;
}

// The whole model in double precision.
class ReferenceLlama {
 public:
  ReferenceLlama(const ModelConfig& config, const Model& model, const InMemoryParameters& parameters)
      : config_(config) {
    for (const WeightSpec& weight : model.weights()) {
      for (const TensorId part : weight.parts) {
        for (const float value : parameters.parameter_values(part)) tensors_[weight.name].push_back(value);
      }
    }
  }
  Values& tensor(const std::string& name) { return tensors_.at(name); }

  double loss(const Tokens& tokens) {
    std::vector<float> narrow(config_.head_size / 2);
    decoder::fill_rotary_frequencies(config_, tokens.sequence, narrow);
    const Values frequencies(narrow.begin(), narrow.end());
    const auto turned = [&](const Values& x, uint64_t heads) {
      return reference::rotated(x, tokens.sequence, config_.head_size, frequencies, heads);
    };
    Values x;
    for (const int32_t token : tokens.inputs) {
      const auto row = tensor("model.embed_tokens.weight").begin() + token * static_cast<long>(config_.width);
      x.insert(x.end(), row, row + config_.width);
    }
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      const std::string h = "model.layers." + std::to_string(layer) + ".";
      const Values normed = norm(x, h + "input_layernorm");
      const uint64_t size = config_.head_size;
      const auto projected = [&](const std::string& part, uint64_t heads) {
        const Values all = linear(normed, h + "self_attn." + part + "_proj", heads * size);
        const bool is_normed = config_.family == ModelFamily::qwen3;
        return turned(is_normed ? norm(all, h + "self_attn." + part + "_norm") : all, heads);
      };
      const Values queries = projected("q", config_.heads);
      const Values keys = projected("k", config_.key_value_heads);
      const Values values = linear(normed, h + "self_attn.v_proj", config_.key_value_heads * size);
      const Values attended = reference::attention(queries, keys, values, tokens.sequence, config_.heads,
                                                   config_.key_value_heads, size);
      add(x, linear(attended, h + "self_attn.o_proj", config_.width));
      const Values inner = norm(x, h + "post_attention_layernorm");
      const Values gated = reference::swiglu(linear(inner, h + "mlp.gate_proj", config_.hidden),
                                             linear(inner, h + "mlp.up_proj", config_.hidden));
      add(x, linear(gated, h + "mlp.down_proj", config_.width));
    }
    const char* const head = config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    return reference::cross_entropy(norm(x, "model.norm"), tensor(head), tokens.targets);
  }

 private:
  Values norm(const Values& x, const std::string& name) {
    return reference::rms_norm(x, tensor(name + ".weight"), config_.norm_epsilon);
  }
  Values linear(const Values& x, const std::string& name, uint64_t outputs) {
    const auto bias = tensors_.find(name + ".bias");
    return reference::linear_of_rows(x, tensor(name + ".weight"), outputs,
                                     bias == tensors_.end() ? Values() : bias->second);
  }
  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  ModelConfig config_;
  std::map<std::string, Values> tensors_;
};

void expect_exact(const TestModel& config, InstructionSet set) {
  const auto owner = config.make();
  const Model& model = *owner;
  const Tokens tokens(config, 2, 7);
  InMemoryParameters parameters = parameters_of(model);
  // Biases and norms away from the values they start with.
  for (uint32_t i = 0; i < parameters.tensors().size(); ++i) {
    if (parameters.tensors()[i].shape.size() != 1) continue;
    std::vector<float> values = parameters.parameter_values(TensorId{i});
    const std::vector<float> change = random_values(values.size(), 100 + i, 0.3f);
    for (size_t k = 0; k < values.size(); ++k) values[k] += change[k];
    const std::vector<std::byte> bytes = bytes_from(values, config.type);
    std::copy(bytes.begin(), bytes.end(), parameters.parameter_bytes(TensorId{i}).begin());
  }
  ReferenceLlama exact(model.config(), model, parameters);
  Workers workers(2);
  WorkMemory work(kWorkBytes);
  const float loss_scale = 3.0f;
  const float loss =
      model.train_micro_batch(HostOps(workers, set), parameters, work.arena(), tokens.view(), loss_scale, "");
  EXPECT_NEAR(loss, exact.loss(tokens), 1e-5);
  for (const WeightSpec& weight : model.weights()) {
    reference::expect_gradient(
        numbers_of(gradient_of(parameters, weight), DataType::fp32), exact.tensor(weight.name),
        [&] { return loss_scale * exact.loss(tokens); }, 2e-3, weight.name, 10);
  }
}

class LlamaOnEverySet : public ForEachInstructionSet {};

TEST_P(LlamaOnEverySet, MatchesDoublePrecisionAndItsFiniteDifferences) {
  const std::array families = {ModelFamily::llama, ModelFamily::qwen2, ModelFamily::qwen3};
  for (size_t f = 0; f < families.size(); ++f) {
    // Each set takes one of them there.
    if (testing::kSanitized && f != static_cast<size_t>(GetParam()) % families.size()) continue;
    expect_exact(tiny(families[f]), GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(Sets, LlamaOnEverySet,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

TEST(Llama, MatchesDoublePrecisionWithBiasesEverywhereAndStretchedPositions) {
  TestModel config = tiny();
  config.attention_bias = config.output_bias = config.mlp_bias = config.tied_embeddings = true;
  config.key_value_heads = 4;
  config.rope.kind = RopeScalingKind::llama3;
  config.rope.factor = 8;
  config.rope.original_context = 32;
  expect_exact(config, best_instruction_set());
}

TEST(Llama, HasNormsOverHeadsInAQwen3) {
  const auto model = make_model(model_preset("qwen3-0.6b"), {});
  std::map<std::string, std::vector<uint64_t>> shapes;
  for (const WeightSpec& weight : model->weights()) shapes[weight.name] = weight.shape;
  EXPECT_EQ(shapes.size(), 2u + 28u * 11u);
  using Shape = std::vector<uint64_t>;
  EXPECT_EQ(shapes["model.layers.27.self_attn.q_norm.weight"], Shape{128});
  EXPECT_EQ(shapes["model.layers.27.self_attn.k_norm.weight"], Shape{128});
  EXPECT_EQ(shapes["model.layers.0.self_attn.q_proj.weight"], (Shape{2048, 1024}));
}

TEST(Llama, HasTheNamesAndShapesOfWeightFiles) {
  const auto model = make_model(model_preset("llama-3.2-1b"), {});
  std::map<std::string, std::vector<uint64_t>> shapes;
  for (const WeightSpec& weight : model->weights()) shapes[weight.name] = weight.shape;
  EXPECT_EQ(shapes.size(), 2u + 16u * 9u);
  using Shape = std::vector<uint64_t>;
  EXPECT_EQ(shapes["model.embed_tokens.weight"], (Shape{128256, 2048}));
  EXPECT_EQ(shapes["model.layers.15.self_attn.q_proj.weight"], (Shape{2048, 2048}));
  EXPECT_EQ(shapes["model.layers.0.self_attn.k_proj.weight"], (Shape{512, 2048}));
  EXPECT_EQ(shapes["model.layers.0.self_attn.v_proj.weight"], (Shape{512, 2048}));
  EXPECT_EQ(shapes["model.layers.0.self_attn.o_proj.weight"], (Shape{2048, 2048}));
  EXPECT_EQ(shapes["model.layers.0.mlp.gate_proj.weight"], (Shape{8192, 2048}));
  EXPECT_EQ(shapes["model.layers.0.mlp.up_proj.weight"], (Shape{8192, 2048}));
  EXPECT_EQ(shapes["model.layers.0.mlp.down_proj.weight"], (Shape{2048, 8192}));
  EXPECT_EQ(shapes["model.layers.0.input_layernorm.weight"], (Shape{2048}));
  EXPECT_EQ(shapes["model.layers.0.post_attention_layernorm.weight"], (Shape{2048}));
  EXPECT_EQ(shapes["model.norm.weight"], (Shape{2048}));
  const auto qwen = make_model(model_preset("qwen2.5-7b"), {});
  std::set<std::string> names;
  for (const WeightSpec& weight : qwen->weights()) names.insert(weight.name);
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_TRUE(names.contains("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_FALSE(names.contains("model.layers.0.self_attn.o_proj.bias"));
}

TEST(Llama, StartsNearTheLogarithmOfTheVocabulary) {
  TestModel config = tiny();
  config.vocabulary = 1000;
  config.init_std = 0.02f;
  EXPECT_NEAR(train(config, Tokens(config, 2, 9)).loss, std::log(1000.0), 0.1);
}

}  // namespace
}  // namespace terrace::testing::llama_test
