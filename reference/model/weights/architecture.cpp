#include <terrace/reference/model/weights/architecture.h>

#include <fmt/format.h>

#include <optional>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/reference/model/transformer/foreign_model.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr const char* kModelConfig = "model_config";
constexpr const char* kFrozen = "frozen";
constexpr const char* kLora = "lora";
constexpr const char* kQuantizeBase = "quantize_base";
constexpr const char* kTablePart = "table_part_elements";
constexpr const char* kInPyTorch =
    "load it in PyTorch and write its weights with engine.save_safetensors(FOLDER)";

[[noreturn]] void refuse(std::string_view name, const std::string& reason,
                         const std::string& advice = "use the Terrace that saved it, or a later one") {
  throw Error(ErrorKind::config,
              {"cannot make the model of the checkpoint", std::string(name), reason, advice});
}

// PyTorch trains what is not computed here, and writes its weights itself.
ModelConfig read_config(const JsonNode& node, std::string_view name) {
  try {
    return parse_model_config(json_text(node), name);
  } catch (const ForeignModelError& error) {
    refuse(name, error.parts().reason, kInPyTorch);
  }
}

std::vector<std::string> read_texts(const JsonMember& member, std::string_view name) {
  std::vector<std::string> texts;
  for (const JsonNode& item : member.value.items) {
    if (!item.is(JsonNode::Kind::text))
      refuse(name, fmt::format("\"{}\" is not a list of texts", member.key));
    texts.push_back(item.text);
  }
  return texts;
}

uint64_t read_whole_number(const JsonMember& member, std::string_view name) {
  const std::optional<uint64_t> value = member.value.whole_number();
  if (!value) refuse(name, fmt::format("\"{}\" is not a whole number", member.key));
  return *value;
}

LoraOptions read_lora(const JsonMember& member, std::string_view name) {
  LoraOptions lora;
  for (const JsonMember& part : member.value.members) {
    if (part.key == "rank") {
      lora.rank = static_cast<uint32_t>(read_whole_number(part, name));
    } else if (part.key == "alpha") {
      if (!part.value.is(JsonNode::Kind::number)) refuse(name, "its \"alpha\" is not a number");
      lora.alpha = part.value.number;
    } else if (part.key == "targets") {
      lora.targets = read_texts(part, name);
    } else {
      refuse(name, fmt::format("its adapters have {}, which this Terrace does not know",
                               json_quoted(part.key, 80)));
    }
  }
  return lora;
}

}  // namespace

std::string architecture_text(const Model& model) {
  const ModelOptions& options = model.options();
  const std::string config = model_config_json(model.config(), options.type);
  JsonWriter json;
  json.begin_object().member(kModelConfig, json_raw(json_text(parse_json(config, "config.json"))));
  json.list(kFrozen, options.frozen).member(kTablePart, options.table_part_elements);
  if (options.lora) {
    json.begin_object(kLora).members({{"rank", options.lora->rank}, {"alpha", options.lora->alpha}});
    json.list("targets", options.lora->targets).end();
  }
  if (options.quantize_base != WeightCode::none) json.member(kQuantizeBase, name_of(options.quantize_base));
  return json.end().take();
}

std::unique_ptr<Model> make_model_of(std::string_view architecture, DataType type, std::string_view name) {
  if (architecture.empty()) refuse(name, "it does not say what model it is of", kInPyTorch);
  const JsonNode root = parse_json(architecture, name);
  std::optional<ModelConfig> config;
  ModelOptions options;
  options.type = type;
  for (const JsonMember& member : root.members) {
    if (member.key == kModelConfig) {
      config = read_config(member.value, name);
    } else if (member.key == kFrozen) {
      options.frozen = read_texts(member, name);
    } else if (member.key == kLora) {
      options.lora = read_lora(member, name);
    } else if (member.key == kQuantizeBase) {
      const std::optional<WeightCode> code = weight_code_from_name(member.value.text);
      if (!code) refuse(name, fmt::format("its base is in {}", json_quoted(member.value.text, 80)));
      options.quantize_base = *code;
    } else if (member.key == kTablePart) {
      options.table_part_elements = read_whole_number(member, name);
    } else {
      refuse(name, fmt::format("its architecture has {}, which this Terrace does not know",
                               json_quoted(member.key, 80)));
    }
  }
  if (!config) refuse(name, "its architecture has no \"model_config\"");
  return make_model(*config, options);
}

}  // namespace terrace
