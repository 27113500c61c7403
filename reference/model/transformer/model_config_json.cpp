// config.json, both ways. What is not understood and could change the computation is refused with its key:
// a model that trains on quietly with other arithmetic is worse than one that does not start.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/utf8.h>
#include <terrace/reference/model/transformer/foreign_model.h>
#include <terrace/reference/model/transformer/model_config.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

bool is_whole(const JsonNode& value, double least, double most) {
  return value.is(JsonNode::Kind::number) && value.number >= least && value.number <= most &&
         value.number == std::floor(value.number);
}

class ConfigReader {
 public:
  ConfigReader(std::string_view json, std::string_view name, std::vector<std::string>* warnings)
      : name_(name), warnings_(warnings) {
    if (const size_t good = well_formed_bytes(json); good != json.size())
      refuse_file(fmt::format("byte {} is no UTF-8", good));
    if (const size_t zero = json.find('\0'); zero != std::string_view::npos)
      refuse_file(fmt::format("byte {} is 0, which is no text", zero));
    try {
      root_ = parse_json(json, name_);
    } catch (const Error& error) {
      refuse_file(error.parts().what_failed.in(Door::cpp));
    }
    if (!root_.is(Kind::object)) refuse_file("it is no JSON object");
  }

  ModelConfig read();

 private:
  using Kind = JsonNode::Kind;

  [[noreturn]] void refuse_file(const std::string& problem) const {
    throw Error(ErrorKind::config, {"cannot read the model's configuration", name_, problem,
                                    "give the config.json that save_pretrained wrote"});
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& reason,
                           const std::string& advice) const {
    throw Error(ErrorKind::config,
                {"cannot build the model of", name_, fmt::format("\"{}\": {}", key, reason), advice});
  }
  // Refuses a model that this trainer does not compute.
  [[noreturn]] void refuse_foreign(const std::string& key, const std::string& reason) const;
  void warn(const std::string& text) const {
    if (warnings_ != nullptr) warnings_->push_back(fmt::format("{}: {}", name_, text));
  }

  // The value, or null when the key is missing or null itself.
  static const JsonNode& find(const JsonNode& object, const char* key) {
    static const JsonNode kNull;
    const JsonNode* value = object.find(key);
    return value == nullptr ? kNull : *value;
  }
  double number(const JsonNode& object, const char* key, double fallback) const;
  uint32_t count(const char* key, uint32_t fallback) const;
  uint32_t required_count(const char* key) const;
  float epsilon(const char* key, double fallback) const;
  int32_t token(const char* key, const JsonNode& value) const;
  SpecialTokens special_tokens() const;
  bool flag(const JsonNode& object, const char* key, bool fallback) const;
  bool flag(const char* key, bool fallback) const { return flag(root_, key, fallback); }
  // Refuses another value than `wanted` of a key that may be missing.
  void require_flag(const char* key, bool wanted) const;
  void require_activation(const char* key, std::initializer_list<std::string_view> accepted) const;
  void mention_dropout(std::initializer_list<const char*> keys) const;
  void refuse_other_architectures() const;

  void read_gpt2(ModelConfig& config) const;
  void read_llama(ModelConfig& config, const std::string& type) const;
  void read_window(ModelConfig& config, const std::string& type) const;
  void read_rope(ModelConfig& config) const;
  void read_rope_of(const char* key, ModelConfig& config) const;
  void read_yarn(const JsonNode& rope, RopeScaling& scaling) const;

  std::string name_;
  std::vector<std::string>* warnings_;
  JsonNode root_;
};

double ConfigReader::number(const JsonNode& object, const char* key, double fallback) const {
  const JsonNode& value = find(object, key);
  if (value.is(Kind::null)) return fallback;
  if (!value.is(Kind::number)) refuse(key, "it is no number", "correct the file");
  return value.number;
}

uint32_t ConfigReader::count(const char* key, uint32_t fallback) const {
  const JsonNode& value = find(root_, key);
  if (value.is(Kind::null)) return fallback;
  if (!is_whole(value, 0, std::numeric_limits<uint32_t>::max()))
    refuse(key, "it is no whole number of 32 bits", "correct the file");
  return static_cast<uint32_t>(value.number);
}

uint32_t ConfigReader::required_count(const char* key) const {
  if (find(root_, key).is(Kind::null))
    refuse(key, "it is missing", "give the config.json that save_pretrained wrote");
  return count(key, 0);
}

// Of a normalization, in the type that it is computed in.
float ConfigReader::epsilon(const char* key, double fallback) const {
  const auto value = static_cast<float>(number(root_, key, fallback));
  if (!(value > 0.0f && std::isfinite(value)))
    refuse(key, "it is not positive and finite in fp32", "correct the file: 1e-5 and 1e-6 are usual");
  return value;
}

int32_t ConfigReader::token(const char* key, const JsonNode& value) const {
  if (!is_whole(value, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()))
    refuse(key, "it is no token id", "correct the file, or leave it out");
  return static_cast<int32_t>(value.number);
}

SpecialTokens ConfigReader::special_tokens() const {
  SpecialTokens tokens;
  const auto read_one = [&](const char* key, std::optional<int32_t>& id) {
    if (!find(root_, key).is(Kind::null)) id = token(key, find(root_, key));
  };
  read_one("bos_token_id", tokens.begin);
  read_one("pad_token_id", tokens.padding);
  const JsonNode& end = find(root_, "eos_token_id");
  if (end.is(Kind::list)) {
    for (const JsonNode& id : end.items) tokens.end.push_back(token("eos_token_id", id));
  } else if (!end.is(Kind::null)) {
    tokens.end.push_back(token("eos_token_id", end));
  }
  return tokens;
}

bool ConfigReader::flag(const JsonNode& object, const char* key, bool fallback) const {
  const JsonNode& value = find(object, key);
  if (value.is(Kind::null)) return fallback;
  if (!value.is(Kind::boolean)) refuse(key, "it is neither true nor false", "correct the file");
  return value.boolean;
}

// The reason follows the key at once.
void ConfigReader::refuse_foreign(const std::string& key, const std::string& reason) const {
  const JsonNode& classes = find(root_, "architectures");
  const bool named = !classes.items.empty() && classes.items.front().is(Kind::text);
  throw ForeignModelError(
      {"cannot build the model of", std::string(name_), fmt::format("\"{}\"{}", key, reason),
       "train it in PyTorch with the same configuration (docs/python.md)"},
      named ? classes.items.front().text : "");
}

void ConfigReader::require_flag(const char* key, bool wanted) const {
  if (flag(key, wanted) == wanted) return;
  refuse_foreign(key, fmt::format(": Terrace's own trainer computes as with {}", wanted));
}

void ConfigReader::require_activation(const char* key,
                                      std::initializer_list<std::string_view> accepted) const {
  const JsonNode& value = find(root_, key);
  if (value.is(Kind::null)) return;
  for (const std::string_view name : accepted) {
    if (value.is(Kind::text) && value.text == name) return;
  }
  refuse_foreign(key, fmt::format(": Terrace's own trainer computes {} here", *accepted.begin()));
}

void ConfigReader::mention_dropout(std::initializer_list<const char*> keys) const {
  std::string found;
  for (const char* key : keys) {
    if (number(root_, key, 0.0) > 0.0) found += fmt::format("{}{}", found.empty() ? "" : ", ", key);
  }
  if (!found.empty()) warn(fmt::format("dropout is not applied ({})", found));
}

void ConfigReader::refuse_other_architectures() const {
  if (!find(root_, "quantization_config").is(Kind::null))
    refuse("quantization_config", "the weights are quantized", "use the model in bf16, fp16 or fp32");
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!find(root_, key).is(Kind::null))
      refuse_foreign(key, ": the model is a mixture of experts, and Terrace's own trainer has dense models");
  }
}

void ConfigReader::read_gpt2(ModelConfig& config) const {
  config.family = ModelFamily::gpt2;
  config.layers = required_count("n_layer");
  config.heads = required_count("n_head");
  config.width = required_count("n_embd");
  config.hidden = count("n_inner", 0);
  config.positions = required_count("n_positions");
  config.norm_epsilon = epsilon("layer_norm_epsilon", 1e-5);
  config.tied_embeddings = flag("tie_word_embeddings", true);
  require_activation("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  require_flag("scale_attn_weights", true);
  require_flag("scale_attn_by_inverse_layer_idx", false);
  require_flag("reorder_and_upcast_attn", false);
  require_flag("add_cross_attention", false);
  mention_dropout({"attn_pdrop", "embd_pdrop", "resid_pdrop"});
}

void ConfigReader::read_llama(ModelConfig& config, const std::string& type) const {
  config.family = type == "qwen2"     ? ModelFamily::qwen2
                  : type == "qwen3"   ? ModelFamily::qwen3
                  : type == "mistral" ? ModelFamily::mistral
                                      : ModelFamily::llama;
  config.layers = required_count("num_hidden_layers");
  config.heads = required_count("num_attention_heads");
  config.key_value_heads = count("num_key_value_heads", type == "mistral" ? 8 : 0);
  config.head_size = count("head_dim", type == "qwen3" ? 128 : 0);
  config.width = required_count("hidden_size");
  config.hidden = required_count("intermediate_size");
  config.positions = required_count("max_position_embeddings");
  config.norm_epsilon = epsilon("rms_norm_eps", 1e-6);
  config.tied_embeddings = flag("tie_word_embeddings", false);
  config.output_bias = (type == "llama" || type == "qwen3") && flag("attention_bias", false);
  config.attention_bias = type == "qwen2" || config.output_bias;
  config.mlp_bias = type == "llama" && flag("mlp_bias", false);
  require_activation("hidden_act", {"silu"});
  mention_dropout({"attention_dropout"});
  read_rope(config);
}

void ConfigReader::read_window(ModelConfig& config, const std::string& type) const {
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  const bool used = type == "mistral" || (is_qwen && flag("use_sliding_window", false));
  const uint32_t window = count("sliding_window", type == "mistral" ? 4096 : 0);
  const bool none = root_.find("sliding_window") != nullptr && find(root_, "sliding_window").is(Kind::null);
  if (used && !none) {
    if (is_qwen && window < config.context) {
      refuse_foreign("use_sliding_window", ": Terrace's own trainer attends to the whole sequence");
    }
    if (window == 0) refuse("sliding_window", "a window of no token", "correct the file");
    config.sliding_window = window;
  }
  if (config.sliding_window != 0 && window < config.context) {
    warn(fmt::format("attention looks {} tokens back: sequences may not be longer", window));
    config.context = window;
  }
  for (const JsonNode& layer : find(root_, "layer_types").items) {
    if (!used && !(layer.is(Kind::text) && layer.text == "full_attention"))
      refuse_foreign("layer_types", ": Terrace's own trainer computes full attention in every layer");
  }
}

void ConfigReader::read_yarn(const JsonNode& rope, RopeScaling& scaling) const {
  scaling.beta_fast = number(rope, "beta_fast", 32.0);
  scaling.beta_slow = number(rope, "beta_slow", 1.0);
  scaling.truncate = flag(rope, "truncate", true);
  scaling.attention_factor = number(rope, "attention_factor", 0.0);
  const double numerator = number(rope, "mscale", 0.0), denominator = number(rope, "mscale_all_dim", 0.0);
  if (scaling.attention_factor != 0.0 || numerator == 0.0 || denominator == 0.0) return;
  const auto growth = [&](double scale) {
    return scaling.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(scaling.factor) + 1.0;
  };
  scaling.attention_factor = growth(numerator) / growth(denominator);
}

// "rope_parameters" since transformers 5; "rope_theta" and "rope_scaling" before.
void ConfigReader::read_rope(ModelConfig& config) const {
  if (number(root_, "partial_rotary_factor", 1.0) != 1.0)
    refuse_foreign("partial_rotary_factor", ": Terrace's own trainer turns whole heads");
  config.rope_theta = number(root_, "rope_theta", 10000.0);
  ModelConfig older = config;
  read_rope_of("rope_parameters", config);
  older.rope_theta = config.rope_theta;  // rope_scaling seldom has one of its own
  read_rope_of("rope_scaling", older);
  const bool both =
      !find(root_, "rope_parameters").is(Kind::null) && !find(root_, "rope_scaling").is(Kind::null);
  if (both && (older.rope != config.rope || older.rope_theta != config.rope_theta)) {
    refuse("rope_parameters", "\"rope_scaling\" is there too and says something else",
           "remove the one that the model was not trained with");
  }
  config.rope = older.rope.kind == RopeScalingKind::none ? config.rope : older.rope;
  config.rope_theta = older.rope_theta;
}

void ConfigReader::read_rope_of(const char* key, ModelConfig& config) const {
  const JsonNode& rope = find(root_, key);
  if (rope.is(Kind::null)) return;
  if (!rope.is(Kind::object)) refuse(key, "it is no object", "correct the file");
  config.rope_theta = number(rope, "rope_theta", config.rope_theta);
  if (number(rope, "partial_rotary_factor", 1.0) != 1.0)
    refuse_foreign(key, ": partial_rotary_factor is not 1, and Terrace's own trainer turns whole heads");
  const JsonNode& named = find(rope, rope.find("rope_type") != nullptr ? "rope_type" : "type");
  const std::string kind = named.is(Kind::text) ? named.text : "default";
  if (kind == "default") return;
  RopeScaling& scaling = config.rope;
  scaling.factor = number(rope, "factor", 0.0);
  if (!(scaling.factor >= 1.0)) refuse(key, "\"factor\" is missing or below 1", "correct the file");
  const double original = number(rope, "original_max_position_embeddings", config.positions);
  if (!(original >= 1.0 && original <= 1e9)) {
    refuse(key, "\"original_max_position_embeddings\" is no number of tokens", "correct the file");
  }
  scaling.original_context = static_cast<uint32_t>(original);
  if (kind == "linear") {
    scaling.kind = RopeScalingKind::linear;
  } else if (kind == "dynamic") {
    scaling.kind = RopeScalingKind::dynamic;
    scaling.original_context = config.positions;
  } else if (kind == "llama3") {
    scaling.kind = RopeScalingKind::llama3;
    scaling.low_frequency_factor = number(rope, "low_freq_factor", 1.0);
    scaling.high_frequency_factor = number(rope, "high_freq_factor", 4.0);
  } else if (kind == "yarn") {
    scaling.kind = RopeScalingKind::yarn;
    read_yarn(rope, scaling);
  } else {
    refuse_foreign(key, fmt::format(": Terrace's own trainer has no kind \"{}\"; it has default, linear, "
                                    "dynamic, llama3 and yarn",
                                    kind));
  }
}

ModelConfig ConfigReader::read() {
  const JsonNode& type = find(root_, "model_type");
  const std::string name = type.is(Kind::text) ? type.text : "";
  if (name.empty()) refuse("model_type", "it is missing", "give the config.json that save_pretrained wrote");
  refuse_other_architectures();
  ModelConfig config;
  if (name == "gpt2") {
    read_gpt2(config);
  } else if (name == "llama" || name == "mistral" || name == "qwen2" || name == "qwen3") {
    read_llama(config, name);
  } else {
    refuse_foreign("model_type",
                   fmt::format(" is \"{}\", and Terrace's own trainer has gpt2, llama, mistral, "
                               "qwen2 and qwen3",
                               name));
  }
  config.vocabulary = required_count("vocab_size");
  config.special_tokens = special_tokens();
  config.init_std = static_cast<float>(number(root_, "initializer_range", 0.02));
  config.context = config.positions;
  if (name != "gpt2") read_window(config, name);
  return completed(config);
}

// --- Writing ---

// The shortest decimal that is this number, which nobody takes for a whole one.
std::string decimal(auto number) {
  const std::string text = fmt::format("{}", number);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

void write_decimal(JsonWriter& json, std::string_view key, auto number) {
  json.member(key, json_raw(decimal(number)));
}

void write_rope(const RopeScaling& rope, JsonWriter& json) {
  if (rope.kind == RopeScalingKind::none) return static_cast<void>(json.member("rope_scaling", nullptr));
  json.begin_object("rope_scaling", JsonLayout::lines);
  write_decimal(json, "factor", rope.factor);
  if (rope.kind == RopeScalingKind::linear || rope.kind == RopeScalingKind::dynamic) {
    json.member("rope_type", rope.kind == RopeScalingKind::linear ? "linear" : "dynamic").end();
    return;
  }
  if (rope.kind == RopeScalingKind::llama3) {
    json.member("rope_type", "llama3");
    write_decimal(json, "low_freq_factor", rope.low_frequency_factor);
    write_decimal(json, "high_freq_factor", rope.high_frequency_factor);
  } else {
    json.member("rope_type", "yarn").member("truncate", rope.truncate);
    write_decimal(json, "beta_fast", rope.beta_fast);
    write_decimal(json, "beta_slow", rope.beta_slow);
    if (rope.attention_factor != 0.0) write_decimal(json, "attention_factor", rope.attention_factor);
  }
  json.member("original_max_position_embeddings", rope.original_context).end();
}

void write_gpt2(const ModelConfig& config, JsonWriter& json) {
  json.list("architectures", {"GPT2LMHeadModel"});
  json.members({{"n_layer", config.layers},
                {"n_head", config.heads},
                {"n_embd", config.width},
                {"n_inner", config.hidden},
                {"n_positions", config.positions},
                {"activation_function", "gelu_new"}});
  write_decimal(json, "layer_norm_epsilon", config.norm_epsilon);
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) write_decimal(json, key, 0.0);
}

void write_llama(const ModelConfig& config, JsonWriter& json) {
  json.members({{"num_hidden_layers", config.layers},
                {"num_attention_heads", config.heads},
                {"num_key_value_heads", config.key_value_heads},
                {"head_dim", config.head_size},
                {"hidden_size", config.width},
                {"intermediate_size", config.hidden},
                {"hidden_act", "silu"}});
  // What "dynamic" starts from is this key and no other.
  const bool is_dynamic = config.rope.kind == RopeScalingKind::dynamic;
  json.member("max_position_embeddings", is_dynamic ? config.rope.original_context : config.positions);
  write_decimal(json, "rms_norm_eps", config.norm_epsilon);
  write_decimal(json, "attention_dropout", 0.0);
  write_decimal(json, "rope_theta", config.rope_theta);
  write_rope(config.rope, json);
  switch (config.family) {
    case ModelFamily::mistral:  // without the key transformers takes a window of 4096
      json.list("architectures", {"MistralForCausalLM"});
      json.member("sliding_window",
                  config.sliding_window == 0 ? JsonValue(nullptr) : JsonValue(config.sliding_window));
      break;
    case ModelFamily::qwen2:
      json.list("architectures", {"Qwen2ForCausalLM"});
      json.member("use_sliding_window", false);  // one that is used is no shorter than the positions
      break;
    case ModelFamily::qwen3:
      json.list("architectures", {"Qwen3ForCausalLM"});
      json.members({{"use_sliding_window", false}, {"attention_bias", config.attention_bias}});
      break;
    default:
      json.list("architectures", {"LlamaForCausalLM"});
      json.members({{"attention_bias", config.attention_bias}, {"mlp_bias", config.mlp_bias}});
  }
}

// null where there is none: without the key transformers takes the ids of its family's first model.
void write_special_tokens(const SpecialTokens& tokens, JsonWriter& json) {
  json.members({{"bos_token_id", tokens.begin}, {"pad_token_id", tokens.padding}});
  if (tokens.end.size() > 1) return static_cast<void>(json.list("eos_token_id", tokens.end));
  json.member("eos_token_id", tokens.end.empty() ? JsonValue(nullptr) : JsonValue(tokens.end.front()));
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view name,
                               std::vector<std::string>* warnings) {
  return ConfigReader(json, name, warnings).read();
}

std::string model_config_json(const ModelConfig& given, DataType type) {
  const ModelConfig config = completed(given);
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("model_type", name_of(config.family));
  config.family == ModelFamily::gpt2 ? write_gpt2(config, json) : write_llama(config, json);
  write_special_tokens(config.special_tokens, json);
  json.members({{"vocab_size", config.vocabulary}, {"tie_word_embeddings", config.tied_embeddings}});
  write_decimal(json, "initializer_range", config.init_std);
  json.member("torch_dtype", type == DataType::fp32   ? "float32"
                             : type == DataType::bf16 ? "bfloat16"
                                                      : "float16");
  return json.end().take() + "\n";
}

}  // namespace terrace
