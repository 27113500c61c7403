// The config.json of --model, for every command that takes a model, and what a person can do with a model
// that the program does not compute.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/reference/model/transformer/model_config.h>

namespace terrace {

// What the command does with a model, so that the refusal of a foreign one can name the call that does it.
enum class ModelUse : uint8_t { train, infer };

// Returns the config.json in a folder. Throws Error(config) if there is none: an adapter of PEFT, a folder of
// GGUF files and a folder of checkpoints are told apart. `model` is the value of --model.
std::filesystem::path config_in_folder(const std::filesystem::path& folder, const std::string& model);

// Reads a config.json. `weights` is the folder of the model's weights, or empty. The Error of a model that
// the program does not compute names the call of Python that does; `config` is the value of --config in it.
ModelConfig read_model_config(const std::filesystem::path& path, const std::filesystem::path& weights,
                              ModelUse use, const std::string& config, std::vector<std::string>& warnings);

}  // namespace terrace
