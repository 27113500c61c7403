#include <terrace/reference/model/transformer/model.h>
#include <terrace/runtime/config/parameter_groups.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/model/compute/counter_random.h>

#include "../compute/reference_ops.h"
#include "model_test_support.h"

namespace terrace::testing::gpt2_test {
namespace {

using reference::Values;

TestModel tiny(DataType type = DataType::fp32) {
  TestModel config;
  config.layers = 2, config.heads = 2, config.width = 12, config.context = 9, config.vocabulary = 23;
  config.type = type;
  config.init_std = 0.2f;  // large enough for every part to matter
  return config;
}

// Enough columns and rows for several tasks in every operation.
TestModel small(DataType type = DataType::bf16) {
  TestModel config;
  config.layers = 3, config.heads = 4, config.width = 96, config.context = 112, config.vocabulary = 256;
  config.type = type;
  return config;
}

// The whole model in double precision.
class ReferenceGpt2 {
 public:
  ReferenceGpt2(const ModelConfig& config, const InMemoryParameters& parameters) : config_(config) {
    for (uint32_t i = 0; i < parameters.tensors().size(); ++i) {
      tensors_[parameters.tensors()[i].name] = reference::widened(parameters.parameter_values(TensorId{i}));
    }
  }
  Values& tensor(const std::string& name) { return tensors_.at(name); }

  double loss(const Tokens& tokens) {
    Values x = reference::embedding(tokens.inputs, tensor("transformer.wte.weight"),
                                    tensor("transformer.wpe.weight"), tokens.sequence, config_.width);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      const std::string h = "transformer.h." + std::to_string(layer) + ".";
      const Values qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn");
      const Values attended = reference::attention(qkv, tokens.sequence, config_.heads, config_.width);
      add(x, linear(attended, h + "attn.c_proj"));
      const Values hidden = reference::gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"));
      add(x, linear(hidden, h + "mlp.c_proj"));
    }
    return reference::cross_entropy(norm(x, "transformer.ln_f"), tensor("transformer.wte.weight"),
                                    tokens.targets);
  }

 private:
  Values norm(const Values& x, const std::string& name) {
    return reference::layer_norm(x, tensor(name + ".weight"), tensor(name + ".bias"));
  }
  Values linear(const Values& x, const std::string& name) {
    return reference::linear(x, tensor(name + ".weight"), tensor(name + ".bias"));
  }
  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  ModelConfig config_;
  std::map<std::string, Values> tensors_;
};

TEST(Gpt2Tensors, HaveTheNamesShapesAndGroupsOfTheReleasedModels) {
  const auto owner = make_model(model_preset("gpt2"), {});
  const Model& model = *owner;
  const std::vector<TensorSpec> tensors = model.tensors();
  ASSERT_EQ(model.weights().size(), 148u);
  ASSERT_EQ(tensors.size(), 152u);  // the token table is five parts
  std::set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    names.insert(tensor.name);
    EXPECT_EQ(tensor.group, tensor.shape.size() == 2 ? kDecayGroup : kNoDecayGroup) << tensor.name;
    EXPECT_EQ(tensor.backward_uses, tensor.name.starts_with("transformer.wte.weight") ? 2u : 1u)
        << tensor.name;
    EXPECT_EQ(tensor.type, DataType::bf16);
  }
  EXPECT_EQ(names.size(), tensors.size());
  const auto shape_of = [&](const std::string& name) {
    for (const WeightSpec& weight : model.weights()) {
      if (weight.name == name) return weight.shape;
    }
    return std::vector<uint64_t>{};
  };
  EXPECT_EQ(shape_of("transformer.wte.weight"), (std::vector<uint64_t>{50257, 768}));
  EXPECT_EQ(shape_of("transformer.wpe.weight"), (std::vector<uint64_t>{1024, 768}));
  EXPECT_EQ(shape_of("transformer.h.11.attn.c_attn.weight"), (std::vector<uint64_t>{768, 2304}));
  EXPECT_EQ(shape_of("transformer.h.0.attn.c_proj.weight"), (std::vector<uint64_t>{768, 768}));
  EXPECT_EQ(shape_of("transformer.h.3.mlp.c_fc.weight"), (std::vector<uint64_t>{768, 3072}));
  EXPECT_EQ(shape_of("transformer.h.3.mlp.c_proj.weight"), (std::vector<uint64_t>{3072, 768}));
  EXPECT_EQ(shape_of("transformer.ln_f.bias"), (std::vector<uint64_t>{768}));
}

TEST(Gpt2Tensors, AddUpToTheReleasedSizes) {
  EXPECT_EQ(make_model(model_preset("gpt2"), {})->parameter_count(), 124439808u);
  EXPECT_EQ(make_model(model_preset("gpt2-medium"), {})->parameter_count(), 354823168u);
  EXPECT_EQ(make_model(model_preset("gpt2-large"), {})->parameter_count(), 774030080u);
  EXPECT_EQ(make_model(model_preset("gpt2-xl"), {})->parameter_count(), 1557611200u);
  EXPECT_THROW(model_preset("gpt2-huge"), Error);
}

TEST(Gpt2Config, IsRefusedWhenItsSizesDoNotFit) {
  TestModel config = tiny();
  config.heads = 5;
  EXPECT_THROW(config.make(), Error);
  config = tiny();
  config.vocabulary = 0;
  EXPECT_THROW(config.make(), Error);
}

TEST(Gpt2InitialValues, FollowTheRulesOfGpt2) {
  TestModel config = small();
  config.init_std = 0.02f;
  const auto owner = config.make();
  const Model& model = *owner;
  const std::vector<TensorSpec> tensors = model.tensors();
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    std::vector<float> values(tensors[i].element_count());
    model.initial_values(TensorId{i}, 0, values);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    const std::string& name = tensors[i].name;
    double expected = 0.02;
    if (name.ends_with("c_proj.weight")) expected = 0.02 / std::sqrt(6.0);
    if (name.ends_with(".bias")) expected = 0;
    if (name.find("ln_") != std::string::npos && name.ends_with(".weight")) expected = 1;
    EXPECT_NEAR(deviation, expected, 0.05 * expected) << name;
  }
}

TEST(Gpt2InitialValues, DoNotDependOnHowATensorIsCut) {
  const auto owner = tiny().make();
  const Model& model = *owner;
  std::vector<float> whole(model.tensors()[0].element_count()), pieces(whole.size());
  model.initial_values(TensorId{0}, 0, whole);
  for (size_t first = 0; first < pieces.size(); first += 5) {
    model.initial_values(TensorId{0}, first,
                         std::span(pieces).subspan(first, std::min<size_t>(5, pieces.size() - first)));
  }
  EXPECT_EQ(pieces, whole);
}

class Gpt2OnEverySet : public ForEachInstructionSet {};

TEST_P(Gpt2OnEverySet, MatchesDoublePrecisionAndItsFiniteDifferences) {
  const TestModel config = tiny();
  const auto owner = config.make();
  const Model& model = *owner;
  const Tokens tokens(config, 2, 7);
  InMemoryParameters parameters = parameters_of(model);
  ReferenceGpt2 exact(config, parameters);
  Workers workers(2);
  WorkMemory work(kWorkBytes);
  const float loss_scale = 3.0f;
  const float loss = model.train_micro_batch(HostOps(workers, GetParam()), parameters, work.arena(),
                                             tokens.view(), loss_scale, "");
  EXPECT_NEAR(loss, exact.loss(tokens), 1e-5);
  for (uint32_t i = 0; i < parameters.tensors().size(); ++i) {
    const std::string& name = parameters.tensors()[i].name;
    reference::expect_gradient(
        parameters.gradient_values(TensorId{i}), exact.tensor(name),
        [&] { return loss_scale * exact.loss(tokens); }, 2e-3, name, 12);
  }
}
INSTANTIATE_TEST_SUITE_P(Sets, Gpt2OnEverySet,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

TEST(Gpt2, ReadsTheTiedTableTwiceInBackward) {
  const TestModel config = small(DataType::bf16);
  Tokens tokens(config, 1, 50);
  for (int32_t& token : tokens.inputs) token %= 100;  // ids from 100 on are never looked up
  const Result result = train(config, tokens);
  const std::vector<float> gradient =
      numbers_of(result.gradients.at("transformer.wte.weight"), DataType::bf16);
  const auto row_is_zero = [&](size_t id) {
    for (size_t j = 0; j < config.width; ++j) {
      if (gradient[id * config.width + j] != 0.0f) return false;
    }
    return true;
  };
  EXPECT_FALSE(row_is_zero(200));  // through the head alone
  EXPECT_FALSE(row_is_zero(static_cast<size_t>(tokens.inputs[0])));
  std::vector<std::string> backward_uses;
  for (const RecordedUse& use : result.uses) {
    if (use.kind != UseKind::backward) continue;
    for (const TensorId id : use.tensors) {
      if (id == TensorId{0}) backward_uses.push_back(use.operation);
    }
  }
  EXPECT_EQ(backward_uses, (std::vector<std::string>{"mb0/head.0/backward", "mb0/embedding.0/backward"}));
}

TEST(Gpt2, StartsNearTheLogarithmOfTheVocabulary) {
  TestModel config = small();
  config.vocabulary = 1000;
  const Result result = train(config, Tokens(config, 2, 100));
  EXPECT_NEAR(result.loss, std::log(1000.0), 0.1);
}

TEST(Gpt2, UsesSmallGroupsOfTensorsUnderKeysOfTheirOwn) {
  const Result result = train(tiny(), Tokens(tiny(), 1, 5));
  std::set<std::string> keys;
  std::vector<std::string> order;
  for (const RecordedUse& use : result.uses) {
    EXPECT_TRUE(keys.insert(use.operation).second) << use.operation;
    EXPECT_EQ(use.kind == UseKind::backward, use.operation.ends_with("/backward")) << use.operation;
    EXPECT_LE(use.tensors.size(), 4u);
    order.push_back(use.operation);
  }
  const std::vector<std::string> expected = {
      "mb0/embedding.0/forward",     "mb0/embedding.positions/forward", "mb0/h.0.attn.qkv/forward",
      "mb0/h.0.attn.proj/forward",   "mb0/h.0.mlp.fc/forward",          "mb0/h.0.mlp.proj/forward",
      "mb0/h.1.attn.qkv/forward",    "mb0/h.1.attn.proj/forward",       "mb0/h.1.mlp.fc/forward",
      "mb0/h.1.mlp.proj/forward",    "mb0/head.norm/forward",           "mb0/head.0/forward",
      "mb0/head.0/backward",         "mb0/head.norm/backward",          "mb0/h.1.attn.qkv/recompute",
      "mb0/h.1.attn.proj/recompute", "mb0/h.1.mlp.fc/recompute",        "mb0/h.1.mlp.proj/backward",
      "mb0/h.1.mlp.fc/backward",     "mb0/h.1.attn.proj/backward",      "mb0/h.1.attn.qkv/backward",
      "mb0/h.0.attn.qkv/recompute",  "mb0/h.0.attn.proj/recompute",     "mb0/h.0.mlp.fc/recompute",
      "mb0/h.0.mlp.proj/backward",   "mb0/h.0.mlp.fc/backward",         "mb0/h.0.attn.proj/backward",
      "mb0/h.0.attn.qkv/backward",   "mb0/embedding.0/backward",        "mb0/embedding.positions/backward"};
  EXPECT_EQ(order, expected);
}

// A run with shorter sequences has the position table of the files, whose last rows are not used.
TEST(Gpt2, KeepsAllPositionsOfAShorterContext) {
  TestModel config = tiny();
  const Tokens tokens(config, 2, 7);
  const Result exact = train(config, tokens);
  config.positions = 20;
  const Result found = train(config, tokens);
  EXPECT_EQ(found.loss, exact.loss);
  const std::string name = "transformer.wpe.weight";
  std::vector<std::byte> used = found.gradients.at(name), unused(20 * 12 * 4 - 9 * 12 * 4);
  ASSERT_EQ(used.size(), 20u * 12 * 4);
  EXPECT_TRUE(std::equal(unused.begin(), unused.end(), used.begin() + 9 * 12 * 4));
  used.resize(exact.gradients.at(name).size());
  EXPECT_EQ(used, exact.gradients.at(name));
}

TEST(Gpt2, RefusesTokensAndSequencesThatItDoesNotKnow) {
  const TestModel config = tiny();
  Tokens tokens(config, 1, 5);
  tokens.inputs[3] = 23;
  EXPECT_THROW(train(config, tokens), Error);
  tokens.inputs[3] = 0;
  tokens.targets[4] = -1;
  EXPECT_THROW(train(config, tokens), Error);
  EXPECT_THROW(train(config, Tokens(config, 1, 10)), Error);
}

}  // namespace
}  // namespace terrace::testing::gpt2_test
