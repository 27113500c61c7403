// Models whose frozen linear weights are kept as codes: their tensors, and that they compute with exactly the
// weights that the codes stand for.
#include <gtest/gtest.h>

#include <terrace/optimizer_cpu/weight_codes.h>

#include "model_test_support.h"

namespace terrace::testing::quantized_base_test {
namespace {

using Case = std::tuple<ModelFamily, WeightCode, DataType>;

TestModel model_of(const Case& asked) {
  TestModel model;
  const auto [family, code, type] = asked;
  model.family = family;
  model.layers = 2, model.heads = 4, model.width = 24, model.context = 9, model.vocabulary = 31;
  model.init_std = 0.2f;
  model.type = type;
  model.lora = LoraOptions{.rank = 3, .alpha = 6, .targets = {"*"}};
  model.quantize_base = code;
  if (family == ModelFamily::gpt2) return model;
  model.key_value_heads = 2, model.hidden = 40;
  model.attention_bias = model.output_bias = model.mlp_bias = false;
  return model;
}

class QuantizedBase : public ::testing::TestWithParam<Case> {};

TEST_P(QuantizedBase, KeepsTheFrozenLinearWeightsAsWordsAndNothingElse) {
  TestModel model = model_of(GetParam());
  const auto coded = model.make();
  model.quantize_base = WeightCode::none;
  const auto plain = model.make();
  const std::vector<TensorSpec> tensors = coded->tensors(), before = plain->tensors();
  ASSERT_EQ(tensors.size(), before.size());
  size_t count = 0;
  for (const WeightSpec& weight : coded->weights()) {
    const bool in_layer =
        weight.name.find(".0.") != std::string::npos || weight.name.find(".1.") != std::string::npos;
    EXPECT_EQ(weight.coded.is_coded(), in_layer && weight.shape.size() == 2) << weight.name;
    const TensorSpec& tensor = tensors[index_of(weight.parts.front())];
    if (!weight.coded.is_coded()) continue;
    ++count;
    EXPECT_EQ(tensor.name, weight.name);
    EXPECT_EQ(tensor.type, DataType::fp32);
    EXPECT_EQ(tensor.shape, std::vector{weight.coded.words()});
    EXPECT_EQ(weight.coded.elements, before[index_of(weight.parts.front())].element_count());
  }
  EXPECT_EQ(count, std::get<0>(GetParam()) == ModelFamily::gpt2 ? 8u : 14u);
  for (size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(tensors[t].trainable, before[t].trainable);
  EXPECT_EQ(coded->element_counts(), plain->element_counts());
  EXPECT_EQ(coded->parameter_count(), plain->parameter_count());
}

TEST_P(QuantizedBase, ComputesWithTheWeightsThatTheCodesStandFor) {
  TestModel model = model_of(GetParam());
  const Tokens tokens(model, 2, 9);
  const auto coded = model.make();
  model.quantize_base = WeightCode::none;
  const auto plain = model.make();
  const std::vector<WeightSpec> weights = coded->weights();
  InMemoryParameters words = parameters_of(*coded), numbers = parameters_of(*plain);
  for (const WeightSpec& weight : weights) {
    if (!weight.coded.is_coded()) continue;
    const TensorId tensor = weight.parts.front();
    decode_weights(InstructionSet::scalar, weight.coded.code, words.parameter_bytes(tensor).data(),
                   numbers.parameter_bytes(tensor).data(), weight.coded.type, weight.coded.elements);
  }
  for (const AdapterSpec& adapter : coded->adapters()) {  // so that A has gradients too
    const std::span<std::byte> b = words.parameter_bytes(adapter.b);
    std::ranges::copy(
        words.parameter_bytes(adapter.a).first(std::min(b.size(), words.parameter_bytes(adapter.a).size())),
        b.begin());
    std::ranges::copy(b, numbers.parameter_bytes(adapter.b).begin());
  }
  const auto run = [&](const Model& of, InMemoryParameters& parameters) {
    WorkMemory work(kWorkBytes);
    Workers workers(2);
    parameters.begin_micro_batch();
    return of.train_micro_batch(HostOps(workers, best_instruction_set()), parameters, work.arena(),
                                tokens.view(), 1.0f, "");
  };
  EXPECT_EQ(run(*coded, words), run(*plain, numbers));
  for (const AdapterSpec& adapter : coded->adapters()) {
    for (const TensorId tensor : {adapter.a, adapter.b})
      EXPECT_EQ(words.gradient_values(tensor), numbers.gradient_values(tensor)) << adapter.module;
  }
}

TEST(QuantizedBases, AreRefusedWhereTheyWouldBeTrained) {
  TestModel model = model_of({ModelFamily::gpt2, WeightCode::nf4, DataType::bf16});
  model.lora.reset();
  try {
    model.make();
    FAIL() << "codes cannot be trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_EQ(error.parts().advice, "train adapters beside it");
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedBase,
                         ::testing::Combine(::testing::Values(ModelFamily::gpt2, ModelFamily::qwen3),
                                            ::testing::Values(WeightCode::nf4, WeightCode::int8),
                                            ::testing::Values(DataType::fp32, DataType::bf16,
                                                              DataType::fp16)),
                         [](const auto& made) {
                           return std::string(name_of(std::get<0>(made.param))) + "_" +
                                  std::string(name_of(std::get<1>(made.param))) + "_" +
                                  std::string(name_of(std::get<2>(made.param)));
                         });

}  // namespace
}  // namespace terrace::testing::quantized_base_test
