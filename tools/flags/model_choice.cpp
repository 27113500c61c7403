#include "flags/model_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/runtime/config/schema/suggestions.h>

#include "command_line.h"
#include "flags/model_file.h"
#include "flags/model_path.h"
#include "flags/train_flags.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string_view size_of(std::string_view name) {
  const size_t dash = name.rfind('-');
  return dash == std::string_view::npos ? std::string_view() : name.substr(dash);
}

// Returns those of the names, "a|b|c", that end in the size that `name` ends in ("-8b").
std::string names_of_size(std::string_view names, std::string_view name) {
  std::string found;
  while (!names.empty() && !size_of(name).empty()) {
    const std::string_view one = names.substr(0, names.find('|'));
    if (size_of(one) == size_of(name)) found += fmt::format("{}{}", found.empty() ? "" : "|", one);
    names.remove_prefix(std::min(names.size(), one.size() + 1));
  }
  return found;
}

// Returns the released model of that name. An error suggests the name that a misspelt one is nearest to.
ModelConfig released_model(const std::string& name) {
  try {
    return model_preset(name);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    if (parts.cause != ErrorCause::unknown_name) throw;
    const std::string names = fmt::format("{}", fmt::join(model_preset_names(), "|"));
    // The size is the part that people mean: "llama-3-8b" is nearer to llama-3.1-8b than to llama-2-7b.
    const std::string of_size = names_of_size(names, name);
    std::string suggestion = of_size.empty() ? "" : suggestion_among(of_size, name);
    if (suggestion.empty()) suggestion = suggestion_among(names, name);
    if (suggestion.empty()) throw;
    parts.advice = Wording(suggestion + " ") + parts.advice;
    throw Error(error.kind(), parts);
  }
}

void require_no_sizes(const TrainFlags& flags) {
  const auto refuse_given = [](const char* flag, bool given) {
    if (!given) return;
    refuse(flag, "the weights of --model have a size of their own",
           "leave it out, or name the config.json alone to begin without weights");
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

// Fewer heads than the model has, or more. Where the model's key-value heads do not divide them, these become
// fewer in about the same proportion: there is no flag for them.
void choose_heads(const TrainFlags& flags, ModelChoice& choice) {
  if (!flags.heads) return;
  const uint32_t heads = *flags.heads, all = choice.config.heads;
  uint32_t& key_value_heads = choice.config.key_value_heads;
  choice.config.heads = heads;
  if (heads == 0 || all == 0 || key_value_heads == 0 || heads % key_value_heads == 0) return;
  const uint32_t earlier = key_value_heads;
  key_value_heads = std::max(1u, static_cast<uint32_t>(uint64_t{earlier} * heads / all));
  while (heads % key_value_heads != 0) --key_value_heads;
  choice.warnings.push_back(fmt::format("--heads {}: {} key-value head{}, because {} do not divide {}", heads,
                                        key_value_heads, key_value_heads == 1 ? "" : "s", earlier, heads));
}

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
    choice.config = read_model_config(config_in_folder(path, flags.model), path, ModelUse::train,
                                      flags.config, choice.warnings);
    choice.weights = path;
    choice.own_vocabulary = true;
  } else {
    choice.config = read_model_config(path, {}, ModelUse::train, flags.config, choice.warnings);
    choice.own_vocabulary = true;
  }
  choice.config.layers = flags.layers.value_or(choice.config.layers);
  choice.config.width = flags.width.value_or(choice.config.width);
  choose_heads(flags, choice);
  choose_context(flags, choice);
  choice.config = completed(choice.config);  // sizes that do not fit are refused before the data are read
  return choice;
}

}  // namespace terrace
