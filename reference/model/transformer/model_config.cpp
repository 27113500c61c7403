// Whether the sizes of a model fit together, and the released ones.
#include <terrace/reference/model/transformer/model_config.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include <terrace/base/error.h>

namespace terrace {
namespace {

[[noreturn]] void refuse(const std::string& subject, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot build the model", subject, reason, advice});
}

void check_sizes(const ModelConfig& config) {
  if ((config.layers == 0 && !config.part) || config.heads == 0 || config.width == 0 || config.context == 0 ||
      config.vocabulary == 0) {
    refuse("sizes", "layers, heads, width, context and vocabulary must not be 0", "set them to at least 1");
  }
  if (config.layers > 10000)
    refuse(fmt::format("layers = {}", config.layers), "more than 10000", "use fewer layers");
  constexpr uint32_t kLargest = 1u << 20;
  const auto check = [](const char* name, uint32_t size, uint32_t largest) {
    if (size > largest)
      refuse(fmt::format("{} = {}", name, size), fmt::format("more than {}", largest),
             fmt::format("use a smaller {}", name));
  };
  check("width", config.width, kLargest);
  check("hidden", config.hidden, kLargest);
  check("context", config.context, kLargest);
  check("head_size", config.head_size, kLargest);
  check("positions", config.positions, kLargest * 64);
  if (config.vocabulary > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    refuse(fmt::format("vocabulary = {}", config.vocabulary), "token ids are signed 32-bit numbers",
           "use a smaller vocabulary");
  }
  if (config.head_size == 0 && config.width % config.heads != 0) {
    refuse(fmt::format("width = {}, heads = {}", config.width, config.heads),
           "the width is not a multiple of the heads",
           "choose a width that is heads times the size of a head (64 in the released models)");
  }
}

// Attention to a window of the latest tokens is full attention for sequences that are not longer.
void check_window(const ModelConfig& config) {
  if (config.sliding_window == 0 || config.context <= config.sliding_window) return;
  refuse(fmt::format("context = {}", config.context),
         fmt::format("the model's sliding_window is {}, and Terrace attends to the whole sequence",
                     config.sliding_window),
         fmt::format("use a context of at most {}", config.sliding_window));
}

void check_gpt2(const ModelConfig& config) {
  if (config.key_value_heads != config.heads || config.head_size * config.heads != config.width) {
    refuse(fmt::format("heads = {}, key_value_heads = {}, head_size = {}", config.heads,
                       config.key_value_heads, config.head_size),
           "a GPT-2 has as many keys as queries, together as wide as the model",
           "leave key_value_heads and head_size out, or choose a model of the llama family");
  }
  if (config.context > config.positions) {
    refuse(fmt::format("context = {}", config.context),
           fmt::format("the position table has {} rows", config.positions), "use a shorter context");
  }
}

void check_biases(const ModelConfig& config) {
  const bool attention = config.attention_bias, output = config.output_bias, mlp = config.mlp_bias;
  bool exists = attention == output;
  if (config.family == ModelFamily::qwen2) exists = attention && !output && !mlp;
  if (config.family == ModelFamily::qwen3) exists = attention == output && !mlp;
  if (config.family == ModelFamily::mistral) exists = !attention && !output && !mlp;
  if (exists) return;
  refuse(fmt::format("attention_bias = {}, output_bias = {}, mlp_bias = {}", attention, output, mlp),
         fmt::format("no {} has these", name_of(config.family)),
         "llama has the first two or neither and qwen3 no third, qwen2 has the first alone, mistral none");
}

void check_llama(const ModelConfig& config) {
  if (config.heads % config.key_value_heads != 0) {
    refuse(fmt::format("heads = {}, key_value_heads = {}", config.heads, config.key_value_heads),
           "the heads are not a multiple of the key-value heads", "choose a divisor of the heads");
  }
  if (config.head_size % 2 != 0 || config.head_size < 4) {
    refuse(fmt::format("head_size = {}", config.head_size),
           "rotary positions turn pairs of a head's elements", "choose an even size of at least 4");
  }
  check_biases(config);
  if (config.family == ModelFamily::llama && config.sliding_window != 0) {
    refuse(fmt::format("sliding_window = {}", config.sliding_window), "a Llama has none",
           "set it to 0, or choose the mistral family");
  }
  const RopeScaling& rope = config.rope;
  if (!(config.rope_theta > 1.0) || !(rope.factor >= 1.0)) {
    refuse(fmt::format("rope_theta = {}, factor = {}", config.rope_theta, rope.factor),
           "rotary positions need a base above 1 and a factor of at least 1", "correct the two");
  }
  const bool stretched = rope.kind == RopeScalingKind::dynamic || rope.kind == RopeScalingKind::llama3 ||
                         rope.kind == RopeScalingKind::yarn;
  if (stretched && rope.original_context == 0) {
    refuse("rope scaling", "the context of pre-training is not given", "set original_context");
  }
}

// The least that tells a released model of the Llama family apart.
struct LlamaPreset {
  std::string_view name;
  ModelFamily family;
  uint32_t layers, width, heads, key_value_heads, head_size, hidden, vocabulary, context;
  double theta;
  float epsilon;
  bool tied;
  double llama3_factor;  // 0: rotary positions are not scaled
};

constexpr auto kLlama = ModelFamily::llama, kMistral = ModelFamily::mistral, kQwen2 = ModelFamily::qwen2,
               kQwen3 = ModelFamily::qwen3;
constexpr LlamaPreset kLlamaPresets[] = {
    {"llama-2-7b", kLlama, 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, 1e-5f, false, 0},
    {"llama-2-13b", kLlama, 40, 5120, 40, 40, 128, 13824, 32000, 4096, 1e4, 1e-5f, false, 0},
    {"llama-3.1-8b", kLlama, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, 1e-5f, false, 8},
    {"llama-3.1-70b", kLlama, 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, 1e-5f, false, 8},
    {"llama-3.2-1b", kLlama, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5f, true, 32},
    {"llama-3.2-3b", kLlama, 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, 1e-5f, true, 32},
    {"mistral-7b", kMistral, 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, 1e-5f, false, 0},
    {"smollm2-135m", kLlama, 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5f, true, 0},
    {"smollm2-360m", kLlama, 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, 1e-5f, true, 0},
    {"tinyllama-1.1b", kLlama, 22, 2048, 32, 4, 64, 5632, 32000, 2048, 1e4, 1e-5f, false, 0},
    {"qwen2.5-0.5b", kQwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 1e-6f, true, 0},
    {"qwen2.5-1.5b", kQwen2, 28, 1536, 12, 2, 128, 8960, 151936, 131072, 1e6, 1e-6f, true, 0},
    {"qwen2.5-3b", kQwen2, 36, 2048, 16, 2, 128, 11008, 151936, 32768, 1e6, 1e-6f, true, 0},
    {"qwen2.5-7b", kQwen2, 28, 3584, 28, 4, 128, 18944, 152064, 131072, 1e6, 1e-6f, false, 0},
    {"qwen3-0.6b", kQwen3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6f, true, 0},
    {"qwen3-1.7b", kQwen3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e6, 1e-6f, true, 0},
    {"qwen3-4b", kQwen3, 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e6, 1e-6f, true, 0},
    {"qwen3-8b", kQwen3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, 1e-6f, false, 0},
};

struct Gpt2Preset {
  std::string_view name;
  uint32_t layers, width, heads;
};
constexpr Gpt2Preset kGpt2Presets[] = {{"gpt2", 12, 768, 12},
                                       {"gpt2-medium", 24, 1024, 16},
                                       {"gpt2-large", 36, 1280, 20},
                                       {"gpt2-xl", 48, 1600, 25}};

ModelConfig config_of(const LlamaPreset& preset) {
  ModelConfig config;
  config.family = preset.family;
  config.layers = preset.layers;
  config.heads = preset.heads;
  config.key_value_heads = preset.key_value_heads;
  config.head_size = preset.head_size;
  config.width = preset.width;
  config.hidden = preset.hidden;
  config.context = config.positions = preset.context;
  config.vocabulary = preset.vocabulary;
  config.norm_epsilon = preset.epsilon;
  config.rope_theta = preset.theta;
  if (preset.llama3_factor != 0) {
    config.rope.kind = RopeScalingKind::llama3;
    config.rope.factor = preset.llama3_factor;
    config.rope.original_context = 8192;
  }
  config.tied_embeddings = preset.tied;
  config.attention_bias = preset.family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  return config;
}

}  // namespace

std::string_view name_of(ModelFamily family) {
  constexpr std::array<std::string_view, 5> kNames = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
  return kNames[static_cast<size_t>(family)];
}

ModelConfig completed(const ModelConfig& given) {
  check_sizes(given);
  ModelConfig config = given;
  if (config.key_value_heads == 0) config.key_value_heads = config.heads;
  if (config.head_size == 0) config.head_size = config.width / config.heads;
  if (config.hidden == 0) config.hidden = 4 * config.width;
  if (config.positions == 0) config.positions = config.context;
  config.family == ModelFamily::gpt2 ? check_gpt2(config) : check_llama(config);
  check_window(config);
  return config;
}

ModelConfig whole_of(ModelConfig config) {
  if (!config.part) return config;
  config.layers = config.part->all_layers;
  config.tied_embeddings = config.tied_embeddings || config.part->ties_across;
  config.part.reset();
  return config;
}

ModelConfig model_preset(std::string_view given) {
  std::string name(given);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const Gpt2Preset& preset : kGpt2Presets) {
    if (preset.name == name) {
      ModelConfig config;
      config.layers = preset.layers, config.width = preset.width, config.heads = preset.heads;
      return config;
    }
  }
  for (const LlamaPreset& preset : kLlamaPresets) {
    if (preset.name == name) return config_of(preset);
  }
  throw Error(ErrorKind::config, {"cannot build the model", std::string(given), "there is no such model",
                                  fmt::format("the names are {}", fmt::join(model_preset_names(), ", ")),
                                  ErrorCause::unknown_name});
}

std::vector<std::string_view> model_preset_names() {
  std::vector<std::string_view> names;
  for (const Gpt2Preset& preset : kGpt2Presets) names.push_back(preset.name);
  for (const LlamaPreset& preset : kLlamaPresets) names.push_back(preset.name);
  return names;
}

}  // namespace terrace
