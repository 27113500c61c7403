#include "flags/model_choice.h"

#include <fmt/format.h>

#include <string_view>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/schema/suggestions.h>

#include "flags/model_path.h"
#include "flags/train_flags.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = kMiB;

ModelConfig read_config(const fs::path& path, std::vector<std::string>& warnings) {
  const std::vector<std::byte> bytes = io::read_whole_file(path, kMaxConfigBytes);
  return parse_model_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(),
                            &warnings);
}

// Returns the released model of that name. An error suggests the name that a misspelt one is nearest to.
ModelConfig released_model(const std::string& name) {
  constexpr std::string_view kNames = "the names are ";
  try {
    return model_preset(name);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    if (!parts.advice.starts_with(kNames)) throw;
    std::string names = parts.advice.substr(kNames.size());
    for (size_t at = 0; (at = names.find(", ", at)) != std::string::npos;) names.replace(at, 2, "|");
    const std::string suggestion = suggestion_among(names, name);
    if (suggestion.empty()) throw;
    parts.advice = suggestion + " " + parts.advice;
    throw Error(error.kind(), parts);
  }
}

void require_no_sizes(const TrainFlags& flags) {
  const auto refuse_given = [](const char* flag, bool given) {
    if (!given) return;
    throw Error(ErrorKind::config, {"cannot use", flag, "the weights of --model have a size of their own",
                                    "leave it out, or name the config.json alone to begin without weights"});
  };
  refuse_given("--layers", flags.layers.has_value());
  refuse_given("--width", flags.width.has_value());
  refuse_given("--heads", flags.heads.has_value());
}

}  // namespace

fs::path model_folder(const TrainFlags& flags) {
  const fs::path path = model_path(flags.model);
  return !path.empty() && fs::is_directory(path) ? path : fs::path();
}

namespace {

// Released models allow sequences far longer than most people train on, and activations grow with the length.
constexpr uint32_t kLongestUnasked = 1024;

void choose_context(const TrainFlags& flags, ModelChoice& choice) {
  if (!flags.context && choice.config.context > kLongestUnasked) {
    choice.warnings.push_back(
        fmt::format("sequences of {} tokens, because --context is not given; the model allows {}",
                    kLongestUnasked, choice.config.context));
    choice.config.context = kLongestUnasked;
  }
  choice.config.context = flags.context.value_or(choice.config.context);
}

}  // namespace

ModelChoice choose_model(const TrainFlags& flags) {
  ModelChoice choice;
  const fs::path path = model_path(flags.model);
  if (path.empty()) {
    choice.config = released_model(flags.model);
    // No weights are loaded, so the table of positions need not be longer than the sequences.
    if (flags.context) choice.config.positions = *flags.context;
  } else if (fs::is_directory(path)) {
    require_no_sizes(flags);
    if (!fs::exists(path / "config.json")) {
      throw Error(ErrorKind::config,
                  {"cannot use the model in", path.string(), "it has no config.json",
                   "name a folder that save_pretrained, or terrace export, wrote; a folder goes before the "
                   "released model of its name"});
    }
    choice.config = read_config(path / "config.json", choice.warnings);
    choice.weights = path;
    choice.own_vocabulary = true;
  } else {
    choice.config = read_config(path, choice.warnings);
    choice.own_vocabulary = true;
  }
  choice.config.layers = flags.layers.value_or(choice.config.layers);
  choice.config.width = flags.width.value_or(choice.config.width);
  choice.config.heads = flags.heads.value_or(choice.config.heads);
  choose_context(flags, choice);
  choice.config = completed(choice.config);  // sizes that do not fit are refused before the data are read
  return choice;
}

}  // namespace terrace
