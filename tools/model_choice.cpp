#include "model_choice.h"

#include <fmt/format.h>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

#include "train_flags.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = kMiB;

// A name without a slash stands for a released model, unless it ends like a file.
bool is_path(const std::string& model) {
  return model.find('/') != std::string::npos || model.ends_with(".json") || model == "." || model == "..";
}

ModelConfig read_config(const fs::path& path, std::vector<std::string>& warnings) {
  const std::vector<std::byte> bytes = io::read_whole_file(path, kMaxConfigBytes);
  return parse_model_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(),
                            &warnings);
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
  return is_path(flags.model) && fs::is_directory(flags.model) ? fs::path(flags.model) : fs::path();
}

namespace {

// Released models allow sequences far longer than most people train on, and activations grow with them.
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
  const fs::path path = flags.model;
  if (!is_path(flags.model)) {
    choice.config = model_preset(flags.model);
    // Nothing is loaded: the table of positions need not be longer than the sequences.
    if (flags.context) choice.config.positions = *flags.context;
    if (fs::is_directory(path)) {
      choice.warnings.push_back(fmt::format(
          "--model {} is the released model of that name, without weights; for the folder write ./{}",
          flags.model, flags.model));
    }
  } else if (!model_folder(flags).empty()) {
    require_no_sizes(flags);
    if (!fs::exists(path / "config.json")) {
      throw Error(ErrorKind::config, {"cannot use the model in", flags.model, "it has no config.json",
                                      "name a folder that save_pretrained, or terrace export, wrote"});
    }
    choice.config = read_config(path / "config.json", choice.warnings);
    choice.weights = path;
    choice.own_vocabulary = true;
  } else {
    if (!fs::exists(path)) {
      throw Error(ErrorKind::config, {"cannot find the model", flags.model, "there is no such file or folder",
                                      "a name without a slash stands for a released model"});
    }
    choice.config = read_config(path, choice.warnings);
    choice.own_vocabulary = true;
  }
  choice.config.layers = flags.layers.value_or(choice.config.layers);
  choice.config.width = flags.width.value_or(choice.config.width);
  choice.config.heads = flags.heads.value_or(choice.config.heads);
  choose_context(flags, choice);
  choice.config = completed(choice.config);  // what does not fit is refused before the data are read
  return choice;
}

}  // namespace terrace
