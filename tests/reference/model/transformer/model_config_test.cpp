#include <terrace/reference/model/transformer/model_config.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/model/transformer/foreign_model.h>
#include <terrace/reference/model/transformer/model.h>

#include "support/expect_error.h"

namespace terrace::model_config_test {
namespace {

using ::testing::HasSubstr;

uint64_t parameters_of(const char* name) {
  return make_model(model_preset(name), {})->parameter_count();
}

TEST(ModelPreset, AddsUpToTheReleasedSizes) {
  EXPECT_EQ(parameters_of("gpt2"), 124439808u);
  EXPECT_EQ(parameters_of("gpt2-xl"), 1557611200u);
  EXPECT_EQ(parameters_of("llama-2-7b"), 6738415616u);
  EXPECT_EQ(parameters_of("llama-3.1-8b"), 8030261248u);
  EXPECT_EQ(parameters_of("llama-3.1-70b"), 70553706496u);
  EXPECT_EQ(parameters_of("llama-3.2-1b"), 1235814400u);
  EXPECT_EQ(parameters_of("llama-3.2-3b"), 3212749824u);
  EXPECT_EQ(parameters_of("mistral-7b"), 7248023552u);
  EXPECT_EQ(parameters_of("smollm2-135m"), 134515008u);
  EXPECT_EQ(parameters_of("tinyllama-1.1b"), 1100048384u);
  EXPECT_EQ(parameters_of("qwen2.5-0.5b"), 494032768u);
  EXPECT_EQ(parameters_of("qwen2.5-1.5b"), 1543714304u);
  EXPECT_EQ(parameters_of("qwen2.5-3b"), 3085938688u);
  EXPECT_EQ(parameters_of("qwen2.5-7b"), 7615616512u);
}

TEST(ModelPreset, NamesThemAllWhenItKnowsNone) {
  try {
    model_preset("llama-9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("gpt2-medium"));
    EXPECT_THAT(error.what(), HasSubstr("qwen2.5-0.5b"));
  }
}

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256
})";
constexpr const char* kGpt2 = R"({
  "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1,
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05, "vocab_size": 50257
})";
constexpr const char* kQwen2 = R"({
  "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936
})";
constexpr const char* kMistral = R"({
  "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 32768
})";

constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
  "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936
})";

// `json` with `old_text` replaced.
std::string changed(std::string json, const std::string& old_text, const std::string& new_text) {
  const size_t at = json.find(old_text);
  EXPECT_NE(at, std::string::npos) << old_text;
  return json.replace(at, old_text.size(), new_text);
}

TEST(ModelPreset, IsNamedInAnyCase) {
  EXPECT_EQ(model_preset("Qwen2.5-0.5B"), model_preset("qwen2.5-0.5b"));
}

TEST(ParseModelConfig, ReadsTheReleasedModels) {
  std::vector<std::string> warnings;
  // A preset has no tokenizer, and so no special tokens.
  const auto read = [&](const char* json) {
    ModelConfig config = parse_model_config(json, "config.json", &warnings);
    config.special_tokens = {};
    return config;
  };
  EXPECT_EQ(read(kLlama), completed(model_preset("llama-3.2-1b")));
  EXPECT_EQ(read(kQwen2), completed(model_preset("qwen2.5-0.5b")));
  EXPECT_EQ(read(kMistral), completed(model_preset("mistral-7b")));
  EXPECT_EQ(read(kQwen3), completed(model_preset("qwen3-0.6b")));
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  EXPECT_EQ(read(kGpt2), completed(model_preset("gpt2")));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "config.json: dropout is not applied (attn_pdrop, embd_pdrop, resid_pdrop)");
}

TEST(ParseModelConfig, ReadsRopeParametersOfTransformers5) {
  const std::string newer =
      changed(changed(kLlama, "rope_scaling", "rope_parameters"), "\"rope_theta\": 500000.0", "\"x\": 0");
  const std::string theta = changed(newer, "\"factor\": 32.0", "\"factor\": 32.0, \"rope_theta\": 500000.0");
  const ModelConfig config = parse_model_config(theta, "c");
  EXPECT_EQ(config.rope, model_preset("llama-3.2-1b").rope);
  EXPECT_EQ(config.rope_theta, 500000.0);
}

TEST(ParseModelConfig, RefusesTwoRopesThatDisagree) {
  const auto with_newer = [](const std::string& newer) {
    return changed(kLlama, "\"pretraining_tp\": 1", "\"rope_parameters\": {" + newer + "}");
  };
  const std::string same = R"("factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3", "rope_theta": 500000.0)";
  EXPECT_EQ(parse_model_config(with_newer(same), "c").rope, model_preset("llama-3.2-1b").rope);
  for (const std::string& other : {changed(same, "32.0", "8.0"), std::string(R"("rope_type": "default")")}) {
    try {
      parse_model_config(with_newer(other), "c");
      ADD_FAILURE() << other << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), HasSubstr("\"rope_parameters\""));
      EXPECT_THAT(error.what(), HasSubstr("\"rope_scaling\""));
    }
  }
}

TEST(ParseModelConfig, RefusesAnEpsilonThatIsNoPositiveNumberOfFp32) {
  for (const char* bad : {"0", "-1e-5", "1e-60", "1e60"}) {
    for (const auto& [json, key] : {std::pair{kLlama, "rms_norm_eps"}, {kGpt2, "layer_norm_epsilon"}}) {
      const std::string number = std::string("\"") + key + "\": " + bad + ", \"x\"";
      const std::string member = json == kLlama ? "\"rms_norm_eps\"" : "\"n_ctx\"";
      try {
        parse_model_config(changed(json, member, number), "c");
        ADD_FAILURE() << number << " is accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::config);
        EXPECT_THAT(error.what(), HasSubstr(key));
      }
    }
  }
}

TEST(ParseModelConfig, CutsTheContextAtAWindow) {
  std::vector<std::string> warnings;
  const std::string windowed = changed(kMistral, "\"sliding_window\": null", "\"sliding_window\": 4096");
  EXPECT_EQ(parse_model_config(windowed, "c", &warnings).context, 4096u);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(CompletedModelConfig, RefusesAContextBeyondTheWindow) {
  ModelConfig config = model_preset("mistral-7b");
  config.sliding_window = 16;
  config.context = 16;
  EXPECT_NO_THROW(completed(config));
  config.context = 17;
  try {
    completed(config);
    ADD_FAILURE() << "it is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), HasSubstr("sliding_window is 16"));
    EXPECT_THAT(error.what(), HasSubstr("at most 16"));
  }
}

TEST(ModelConfigJson, KeepsTheFamilyAndAMistralsWindow) {
  const std::string windowed = changed(kMistral, "\"sliding_window\": null", "\"sliding_window\": 4096");
  for (const auto& [given, name, window] :
       {std::tuple{windowed, "Mistral", "\"sliding_window\": 4096"},
        {std::string(kMistral), "Mistral", "\"sliding_window\": null"},
        {std::string(kQwen3), "Qwen3", "\"use_sliding_window\": false"}}) {
    const ModelConfig config = parse_model_config(given, "c");
    const std::string json = model_config_json(config, DataType::bf16);
    EXPECT_THAT(json, HasSubstr(fmt::format("\"{}ForCausalLM\"", name)));
    EXPECT_THAT(json, HasSubstr(window));
    EXPECT_EQ(parse_model_config(json, "c"), config) << json;
  }
}

TEST(ModelConfigJson, WritesNumbersAsShortAsTheyAre) {
  const std::string json = model_config_json(parse_model_config(kMistral, "c"), DataType::bf16);
  EXPECT_THAT(json, HasSubstr("\"rms_norm_eps\": 1e-05"));
  EXPECT_THAT(json, HasSubstr("\"initializer_range\": 0.02"));
  EXPECT_THAT(json, HasSubstr("\"attention_dropout\": 0.0"));  // transformers takes 0 for no float
  ModelConfig config = model_preset("mistral-7b");
  config.rope_theta = 1e6 * 1.1 / 3;
  EXPECT_EQ(parse_model_config(model_config_json(config, DataType::bf16), "c").rope_theta, config.rope_theta);
}

TEST(ParseModelConfig, SaysWhatAModelIsThatItRefuses) {
  const auto problem = [](const std::string& member) {
    try {
      parse_model_config(changed(kQwen3, "\"head_dim\"", member + ", \"head_dim\""), "c");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no problem");
  };
  EXPECT_THAT(problem("\"num_experts\": 128"), HasSubstr("mixture of experts"));
  EXPECT_THAT(problem("\"quantization_config\": {}"), HasSubstr("quantized"));
  EXPECT_THAT(problem("\"mlp_bias\": true"), HasSubstr("no problem"));  // transformers does not read it
}

TEST(ModelConfigJson, KeepsSpecialTokensAndWritesNullForNone) {
  const std::string json =
      changed(kLlama, "\"pretraining_tp\": 1", "\"eos_token_id\": [128001, 128009], \"pad_token_id\": 0");
  const ModelConfig config = parse_model_config(json, "c");
  EXPECT_EQ(config.special_tokens.begin, 128000);
  EXPECT_EQ(config.special_tokens.end, (std::vector<int32_t>{128001, 128009}));
  EXPECT_EQ(config.special_tokens.padding, 0);
  EXPECT_EQ(parse_model_config(model_config_json(config, DataType::bf16), "c"), config);
  const std::string without = model_config_json(model_preset("gpt2"), DataType::bf16);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    EXPECT_THAT(without, HasSubstr("\"" + std::string(key) + "\": null"));
  EXPECT_THROW(parse_model_config(changed(json, "[128001, 128009]", "[\"end\"]"), "c"), Error);
}

struct Refusal {
  const char* json;
  const char* old_text;
  const char* new_text;
  const char* key;
};

TEST(ParseModelConfig, RefusesWhatWouldBeComputedDifferentlyNamingTheKey) {
  const Refusal refusals[] = {
      {kGpt2, "gelu_new", "relu", "activation_function"},
      {kGpt2, "\"n_ctx\"", "\"scale_attn_weights\": false, \"n_ctx\"", "scale_attn_weights"},
      {kGpt2, "\"n_ctx\"", "\"scale_attn_by_inverse_layer_idx\": true, \"n_ctx\"",
       "scale_attn_by_inverse_layer_idx"},
      {kGpt2, "\"n_ctx\"", "\"reorder_and_upcast_attn\": true, \"n_ctx\"", "reorder_and_upcast_attn"},
      {kGpt2, "\"n_ctx\"", "\"add_cross_attention\": true, \"n_ctx\"", "add_cross_attention"},
      {kGpt2, "\"n_layer\": 12, ", "", "n_layer"},
      {kGpt2, "\"n_layer\": 12", "\"n_layer\": -1", "n_layer"},
      {kGpt2, "\"gpt2\"", "\"gpt3\"", "model_type"},
      {kLlama, "silu", "gelu", "hidden_act"},
      {kLlama, "llama3", "longrope", "rope_scaling"},
      {kLlama, "\"factor\": 32.0,", "", "rope_scaling"},
      {kLlama, "\"pretraining_tp\"", "\"partial_rotary_factor\": 0.5, \"x\"", "partial_rotary_factor"},
      {kLlama, "\"pretraining_tp\"", "\"quantization_config\": {}, \"x\"", "quantization_config"},
      {kLlama, "\"pretraining_tp\"", "\"num_local_experts\": 8, \"x\"", "num_local_experts"},
      {kLlama, "\"pretraining_tp\"", "\"layer_types\": [\"sliding_attention\"], \"x\"", "layer_types"},
      {kQwen2, "\"sliding_window\": 32768", "\"sliding_window\": 64", "use_sliding_window"},
  };
  for (const Refusal& refusal : refusals) {
    std::string json = changed(refusal.json, refusal.old_text, refusal.new_text);
    if (std::string(refusal.key) == "use_sliding_window")
      json = changed(json, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
    try {
      parse_model_config(json, "c");
      ADD_FAILURE() << refusal.key << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), HasSubstr("\"" + std::string(refusal.key) + "\""));
    }
  }
  for (const char* broken : {"", "[]", "{", "{} x", "null"})
    EXPECT_THROW(parse_model_config(broken, "c"), Error) << broken;
}

TEST(ParseModelConfig, TellsAModelThatOthersComputeFromABrokenFile) {
  try {
    parse_model_config(R"({"model_type": "gemma", "architectures": ["GemmaForCausalLM"]})", "hf/config.json");
    ADD_FAILURE() << "accepted";
  } catch (const ForeignModelError& error) {
    EXPECT_EQ(error.model_class(), "GemmaForCausalLM");
    EXPECT_EQ(error.parts().subject, "hf/config.json");
    EXPECT_THAT(error.what(), HasSubstr("\"model_type\" is \"gemma\""));
    EXPECT_THAT(error.what(), HasSubstr("docs/python.md"));
  }
  for (const Refusal& foreign :
       {Refusal{kLlama, "silu", "gelu", ""}, Refusal{kLlama, "llama3", "longrope", ""},
        Refusal{kGpt2, "\"n_ctx\"", "\"scale_attn_weights\": false, \"n_ctx\"", ""},
        Refusal{kLlama, "\"pretraining_tp\"", "\"num_local_experts\": 8, \"x\"", ""}}) {
    EXPECT_THROW(parse_model_config(changed(foreign.json, foreign.old_text, foreign.new_text), "c"),
                 ForeignModelError);
  }
  const std::string broken = changed(kGpt2, "\"n_layer\": 12, ", "");
  for (const std::string& json : {broken, std::string("{}")}) {
    try {
      parse_model_config(json, "c");
      ADD_FAILURE() << "accepted";
    } catch (const ForeignModelError&) {
      ADD_FAILURE() << "PyTorch does not mend " << json;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
    }
  }
}

TEST(ParseModelConfig, RefusesWhatIsNoJsonObjectHoweverDeep) {
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{"), std::string("{} {}"),
                                  std::string(100'000, '['), "{\"a\":" + std::string(2'000, '{')}) {
    try {
      parse_model_config(text, "config.json");
      ADD_FAILURE() << text.substr(0, 20) << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), HasSubstr("config.json"));
    }
  }
}

TEST(ParseModelConfig, RefusesBytesThatAreNoText) {
  const std::string good = model_config_json(model_preset("gpt2"), DataType::bf16);
  std::string broken = good;
  broken.insert(broken.rfind('}'), ", \"_name\": \"\xFF\"");
  for (const std::string& text : {good + std::string(1, '\0'), broken}) {
    testing::expect_error(ErrorKind::config, {"config.json", "byte "},
                          [&] { parse_model_config(text, "config.json"); });
  }
}

TEST(ModelConfigJson, IsReadBackAsTheSameModel) {
  std::vector<ModelConfig> configs;
  for (const char* name : {"gpt2-medium", "llama-3.1-8b", "mistral-7b", "qwen2.5-1.5b", "smollm2-135m"})
    configs.push_back(completed(model_preset(name)));
  ModelConfig odd = configs[1];
  odd.head_size = 96;
  odd.attention_bias = odd.output_bias = odd.mlp_bias = true;
  odd.rope = {.kind = RopeScalingKind::linear, .factor = 2.5, .original_context = odd.positions};
  configs.push_back(odd);
  odd.rope.kind = RopeScalingKind::dynamic;
  configs.push_back(odd);
  odd.rope = {.kind = RopeScalingKind::yarn, .factor = 4.0, .original_context = 32768, .beta_fast = 30.0};
  odd.rope.attention_factor = 1.25;
  odd.rope.truncate = false;
  configs.push_back(odd);
  for (const ModelConfig& config : configs) {
    const std::string json = model_config_json(config, DataType::bf16);
    EXPECT_THAT(json, HasSubstr("\"bfloat16\""));
    EXPECT_EQ(parse_model_config(json, "c"), config) << json;
  }
}

// A run may use shorter sequences than a model has positions: that is not the model's.
TEST(ModelConfigJson, KeepsPositionsWhenTheContextIsShorter) {
  ModelConfig config = model_preset("gpt2");
  config.positions = 1024;
  config.context = 128;
  EXPECT_EQ(parse_model_config(model_config_json(config, DataType::fp32), "c").positions, 1024u);
}

TEST(CompletedModelConfig, RefusesSizesThatDoNotFitTogether) {
  const ModelConfig llama = model_preset("llama-3.2-1b");
  EXPECT_NO_THROW(completed(llama));
  for (const auto& spoil : std::vector<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.key_value_heads = 5; }, [](ModelConfig& c) { c.head_size = 63; },
           [](ModelConfig& c) { c.rope_theta = 0.5; }, [](ModelConfig& c) { c.rope.factor = 0.5; },
           [](ModelConfig& c) { c.rope.original_context = 0; }, [](ModelConfig& c) { c.layers = 0; },
           [](ModelConfig& c) { c.attention_bias = true; }, [](ModelConfig& c) { c.width = 1u << 21; }}) {
    ModelConfig config = llama;
    spoil(config);
    EXPECT_THROW(completed(config), Error);
  }
  ModelConfig gpt2 = model_preset("gpt2");
  gpt2.key_value_heads = 4;
  EXPECT_THROW(completed(gpt2), Error);
  gpt2 = model_preset("gpt2");
  gpt2.positions = 512;
  EXPECT_THROW(completed(gpt2), Error);
}

}  // namespace
}  // namespace terrace::model_config_test
