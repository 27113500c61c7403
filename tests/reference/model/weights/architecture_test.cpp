#include <terrace/reference/model/weights/architecture.h>

#include <terrace/runtime/checkpoint/checkpoint.h>

#include "reference/model/weights/weights_test_support.h"

namespace terrace::architecture_test {
namespace {

using namespace weights_tests;

ModelConfig small(ModelFamily family) {
  ModelConfig config = model_preset(family == ModelFamily::gpt2 ? "gpt2" : "llama-3.2-1b");
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.head_size = 8;
  config.key_value_heads = family == ModelFamily::gpt2 ? 4 : 2;
  config.hidden = 48;
  config.vocabulary = 300;
  config.context = config.positions = 64;
  return config;
}

TEST(Architecture, MakesAModelWithTheSameTensorsAndWeights) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    ModelOptions options;
    options.type = DataType::fp32;
    options.table_part_elements = 1000;
    options.frozen = {family == ModelFamily::gpt2 ? "*wte*" : "*embed_tokens*"};
    ModelConfig config = small(family);
    config.context = 16;  // of that run only
    const std::unique_ptr<Model> model = make_model(config, options);
    const std::string text = architecture_text(*model);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const std::unique_ptr<Model> again = make_model_of(text, DataType::fp32, "checkpoint");
    EXPECT_EQ(hash_of_tensors(FlatSpace(again->tensors(), kTileElements)),
              hash_of_tensors(FlatSpace(model->tensors(), kTileElements)));
    const std::vector<WeightSpec> weights = model->weights();
    const std::vector<WeightSpec> found = again->weights();
    ASSERT_EQ(found.size(), weights.size());
    for (size_t w = 0; w < weights.size(); ++w) {
      EXPECT_EQ(found[w].name, weights[w].name);
      EXPECT_EQ(found[w].shape, weights[w].shape);
      EXPECT_EQ(found[w].parts, weights[w].parts);
    }
    EXPECT_EQ(architecture_text(*again), text);
  }
}

TEST(Architecture, NamesTheAdapters) {
  ModelOptions options;
  options.lora = LoraOptions{.rank = 5, .alpha = 7.5, .targets = {"*.q_proj", "up_proj"}};
  const std::unique_ptr<Model> model = make_model(small(ModelFamily::llama), options);
  const std::unique_ptr<Model> again = make_model_of(architecture_text(*model), options.type, "checkpoint");
  EXPECT_EQ(again->options().lora, options.lora);
  ASSERT_EQ(again->adapters().size(), model->adapters().size());
  EXPECT_EQ(hash_of_tensors(FlatSpace(again->tensors(), kTileElements)),
            hash_of_tensors(FlatSpace(model->tensors(), kTileElements)));
}

TEST(Architecture, NamesTheCodesOfTheBase) {
  ModelOptions options;
  options.lora = LoraOptions();
  options.quantize_base = WeightCode::int8;
  const std::unique_ptr<Model> model = make_model(small(ModelFamily::llama), options);
  const std::string text = architecture_text(*model);
  const std::unique_ptr<Model> again = make_model_of(text, options.type, "checkpoint");
  EXPECT_EQ(again->options().quantize_base, WeightCode::int8);
  EXPECT_EQ(hash_of_tensors(FlatSpace(again->tensors(), kTileElements)),
            hash_of_tensors(FlatSpace(model->tensors(), kTileElements)));
  std::string other = text;
  other.replace(other.find("int8"), 4, "fp4");
  expect_error(ErrorKind::config, {"there", "its base is in \"fp4\""},
               [&] { make_model_of(other, DataType::bf16, "there"); });
}

TEST(Architecture, OfALaterTerraceOrOfNoModelIsRefused) {
  const std::string text = architecture_text(*make_model(small(ModelFamily::gpt2), {}));
  const auto refuses = [](const std::string& architecture, const std::string& fragment) {
    expect_error(ErrorKind::config, {"there", fragment},
                 [&] { make_model_of(architecture, DataType::bf16, "there"); });
  };
  refuses(R"({"frozen": []})", "no \"model_config\"");
  refuses("{\"experts\": 8, " + text.substr(1), "\"experts\"");
  std::string broken = text;
  broken.replace(broken.find("\"frozen\": []"), 12, "\"frozen\": [1]");
  refuses(broken, "\"frozen\" is not a list of texts");
  broken = text;
  broken.replace(broken.find("\"table_part_elements\": "), 23, "\"table_part_elements\": -");
  refuses(broken, "not a whole number");
  refuses("", "engine.save_safetensors");
  broken = text;
  broken.replace(broken.find("\"gpt2\""), 6, "\"gemma\"");
  refuses(broken, "engine.save_safetensors");
  EXPECT_THROW(make_model_of("{", DataType::bf16, "there"), Error);
}

}  // namespace
}  // namespace terrace::architecture_test
