#include "flags/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/reference/model/transformer/foreign_model.h>
#include <terrace/runtime/checkpoint/inventory.h>
#include <terrace/runtime/config/json/json_document.h>

#include "command_line.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 * kMiB;

// JSON's text is text of Python too.
std::string quoted(const std::string& text) {
  JsonWriter writer;
  return writer.value(text).take();
}

bool has_gguf(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(fs::directory_iterator(folder, error), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".gguf";
  });
}

// Returns " of BASE" for an adapter whose file names its base model; empty for another one.
std::string base_of_adapter(const fs::path& path) {
  try {
    const JsonNode root = parse_json(io::read_whole_text(path, kMaxConfigBytes), path.string());
    const JsonNode* const base = root.find("base_model_name_or_path");
    return base != nullptr && base->is(JsonNode::Kind::text) ? " of " + base->text : "";
  } catch (const Error&) {
    return "";
  }
}

[[noreturn]] void refuse_gguf(const std::string& model) {
  refuse("--model " + model, "GGUF is not read",
         "give the folder that the GGUF file was made from, with config.json and safetensors");
}

// Returns true for a name that may be a class of transformers.
bool is_class_name(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

// Returns the expression of Python that makes the model.
std::string model_expression(const ForeignModelError& error, const fs::path& path, const fs::path& weights) {
  const std::string& named = error.model_class();
  const bool is_decoder = !is_class_name(named) || named.ends_with("ForCausalLM");
  const std::string name = is_decoder ? "AutoModelForCausalLM" : named;
  if (!weights.empty()) return fmt::format("{}.from_pretrained({})", name, quoted(weights.string()));
  return fmt::format("{}{}(AutoConfig.from_pretrained({}))", name, is_decoder ? ".from_config" : "",
                     quoted(path.string()));
}

}  // namespace

fs::path config_in_folder(const fs::path& folder, const std::string& model) {
  const fs::path path = folder / "config.json";
  if (io::is_there(path)) return path;
  const std::string flag = "--model " + model;
  const std::string missing = "it has no config.json";
  if (const fs::path adapter = folder / "adapter_config.json"; io::is_there(adapter)) {
    refuse(flag, fmt::format("{}: it is an adapter{}, as PEFT writes it", missing, base_of_adapter(adapter)),
           "name its base model; to begin from both, merge them first (merge_and_unload() and "
           "save_pretrained() of PEFT)");
  }
  if (has_gguf(folder)) refuse_gguf(model);
  if (is_checkpoint_folder(folder) || is_checkpoint(folder)) {
    refuse(flag, missing,
           fmt::format("it holds checkpoints: eval and generate take it as --checkpoint {}, train goes on "
                       "from it with --resume {}, and `terrace export` makes a model of it",
                       model, model));
  }
  refuse(flag, missing,
         "name a folder that save_pretrained, or terrace export, wrote; a folder goes before the released "
         "model of its name");
}

ModelConfig read_model_config(const fs::path& path, const fs::path& weights, ModelUse use,
                              const std::string& config, std::vector<std::string>& warnings) {
  if (path.extension() == ".gguf") refuse_gguf(path.string());
  try {
    return parse_model_config(io::read_whole_text(path, kMaxConfigBytes), path.string(), &warnings);
  } catch (const ForeignModelError& error) {
    ErrorParts parts = error.parts();
    const std::string model = model_expression(error, path, weights);
    if (use == ModelUse::train) {
      parts.advice = fmt::format(
          "train it in PyTorch with the same file: terrace.initialize(model={}, config={})\n  a whole "
          "program "
          "is examples/python/any_family.py, and docs/python.md the page",
          model, quoted(config.empty() ? "ds.json" : config));
    } else {
      parts.advice = fmt::format("compute it in PyTorch: {}", model);
    }
    throw ForeignModelError(std::move(parts), error.model_class());
  }
}

}  // namespace terrace
