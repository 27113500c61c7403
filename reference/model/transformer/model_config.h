// ModelConfig: the architecture of a model, nothing of a run. It corresponds to a config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/data_type.h>

namespace terrace {

// All families but gpt2 are one computation. mistral is llama if its window is not shorter than the context;
// qwen2 has biases of queries, keys and values; qwen3 has a root-mean-square norm over every head of queries
// and keys.
enum class ModelFamily : uint8_t { gpt2, llama, mistral, qwen2, qwen3 };
std::string_view name_of(ModelFamily family);

enum class RopeScalingKind : uint8_t { none, linear, dynamic, llama3, yarn };

// How rotary positions are stretched beyond the context of pre-training: rope_scaling of config.json.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;
  uint32_t original_context = 0;       // dynamic, llama3, yarn: tokens of pre-training
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;       // yarn, on cosines and sines; 0: 0.1 ln(factor) + 1
  bool truncate = true;                // yarn: whole dimensions bound the ramp
  bool operator==(const RopeScaling&) const = default;
};

// Token ids without meaning to the computation; they are kept for programs that generate with an exported
// model.
struct SpecialTokens {
  std::optional<int32_t> begin, padding;
  std::vector<int32_t> end;  // of text; none, one or several
  bool operator==(const SpecialTokens&) const = default;
};

// What a stage of a pipeline has of a model: some of its layers, and perhaps one of its ends.
struct ModelPart {
  uint32_t all_layers =
      0;  // of the whole model; ModelConfig::layers are those of the part, which may be none
  uint32_t first_layer = 0;
  bool has_embedding = true;
  bool has_norm = true;  // the one behind the last layer
  bool has_head = true;
  bool ties_across = false;  // the embedding and the head are one table, in different stages
  uint32_t stages_behind = 0;
  bool operator==(const ModelPart&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::gpt2;
  uint32_t layers = 12;
  uint32_t heads = 12;
  uint32_t key_value_heads = 0;  // 0: as many as heads
  uint32_t head_size = 0;        // 0: width / heads
  uint32_t width = 768;
  uint32_t hidden = 0;      // width of the feed-forward part; 0: 4 * width
  uint32_t context = 1024;  // the longest sequence of a run
  uint32_t positions = 0;   // gpt2: rows of the position table; else the released model's context; 0: context
  uint32_t sliding_window = 0;  // tokens that attention may look back, which bound the context; 0: all
  uint32_t vocabulary = 50257;
  float norm_epsilon = 1e-5f;
  double rope_theta = 10000.0;
  RopeScaling rope;
  bool tied_embeddings = true;  // the head is the token table
  bool attention_bias = true;   // biases of queries, keys and values
  bool output_bias = true;      // bias of the attention's output projection
  bool mlp_bias = true;
  float init_std = 0.02f;
  SpecialTokens special_tokens;
  std::optional<ModelPart> part = std::nullopt;  // without a value: the whole model
  bool operator==(const ModelConfig&) const = default;
};

// Returns the configuration with every 0 that stands for another value replaced. Throws Error(config) when
// the sizes do not fit together.
ModelConfig completed(const ModelConfig& config);

// Returns the model of which `config` is a part, or itself.
ModelConfig whole_of(ModelConfig config);

// Returns the architecture of a released model by its public name ("gpt2-medium", "llama-3.2-1b",
// "qwen2.5-0.5b"), in any case, with its own vocabulary. Throws Error(config) on another name, naming them
// all.
ModelConfig model_preset(std::string_view name);
std::vector<std::string_view> model_preset_names();

// Reads a config.json of Hugging Face: gpt2, llama, mistral, qwen2 or qwen3. `name` is the file's, for
// messages. Throws Error(config), naming the key, for a missing key and for a value that would compute
// another model here. `warnings` receives the settings that change training but not the model: dropout is not
// applied.
ModelConfig parse_model_config(std::string_view json, std::string_view name,
                               std::vector<std::string>* warnings = nullptr);

// Returns a config.json from which transformers makes the same model. `type` is that of the weights beside
// it.
std::string model_config_json(const ModelConfig& config, DataType type);

}  // namespace terrace
