// Weights that a model keeps as codes, in and out: what a folder has becomes words, and words become a
// folder.
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/reference/model/weights/export_weights.h>
#include <terrace/reference/model/weights/load_weights.h>

#include "reference/model/weights/weights_rig.h"
#include "reference/model/weights/weights_test_support.h"

namespace terrace::coded_weights_test {
namespace {

using namespace weights_tests;

std::unique_ptr<Model> make(WeightCode code) {
  ModelConfig config = model_preset("gpt2");
  config.layers = 1, config.width = 140, config.heads = 4, config.vocabulary = 300;
  config.context = config.positions = 16;
  ModelOptions options;
  options.lora = LoraOptions();
  options.quantize_base = code;
  return make_model(config, options);
}

class CodedWeights : public ::testing::TestWithParam<WeightCode> {
 protected:
  // The model's first values as a folder.
  WeightFolder exported(const Model& model, const std::string& name) {
    WeightsRig rig(model.tensors(), Placement::cpu);
    TrainingState& state = rig.offloader->state();
    state.initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      model.initial_values(tensor, first, values);
    });
    export_model(
        folder_.path() / name, model, rig.tensors, {.type = DataType::fp32},
        [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) { state.export_values(wanted, sink); },
        rig.log);
    return WeightFolder(folder_.path() / name);
  }

  ScratchFolder folder_;
};

TEST_P(CodedWeights, AreMadeOfTheWeightsOfAFolder) {
  const auto plain = make(WeightCode::none), coded = make(GetParam());
  const WeightFolder folder = exported(*plain, "plain");
  const WeightSource numbers(folder, plain->weights(), plain->tensors());
  const WeightSource words(folder, coded->weights(), coded->tensors());
  for (const WeightSpec& weight : coded->weights()) {
    if (!weight.coded.is_coded()) continue;
    std::vector<float> values(weight.coded.elements), found(weight.coded.words()), expected(found.size());
    numbers.read(weight.parts.front(), 0, values);
    encode_weights(GetParam(), values, std::as_writable_bytes(std::span(expected)).data());
    words.read(weight.parts.front(), 0, std::span(found).first(100));
    words.read(weight.parts.front(), 100, std::span(found).subspan(100));
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << weight.name;
  }
}

TEST_P(CodedWeights, AreExportedAsTheNumbersThatWereComputedWith) {
  const auto plain = make(WeightCode::none), coded = make(GetParam());
  const WeightFolder folder = exported(*coded, "coded");
  const WeightSource numbers(folder, plain->weights(), plain->tensors());
  for (const WeightSpec& weight : coded->weights()) {
    if (!weight.coded.is_coded()) continue;
    const uint64_t count = weight.coded.elements;
    std::vector<float> words(weight.coded.words()), found(count), expected(count);
    std::vector<std::byte> narrow(count * bytes_of(weight.coded.type));
    coded->initial_values(weight.parts.front(), 0, words);
    decode_weights(InstructionSet::scalar, GetParam(), std::as_bytes(std::span(words)).data(), narrow.data(),
                   weight.coded.type, count);
    convert_to_float(InstructionSet::scalar, narrow.data(), weight.coded.type, expected.data(), count);
    numbers.read(weight.parts.front(), 0, found);
    EXPECT_EQ(found, expected) << weight.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, CodedWeights, ::testing::Values(WeightCode::nf4, WeightCode::int8),
                         [](const auto& made) { return std::string(name_of(made.param)); });

}  // namespace
}  // namespace terrace::coded_weights_test
