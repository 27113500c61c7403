// Which model `terrace train` trains, and on sequences of which length: a released one by its name, the
// config.json of one, or a folder with the weights of one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/runtime/model/transformer/model_config.h>

namespace terrace {

struct TrainFlags;

struct ModelChoice {
  ModelConfig config;
  std::filesystem::path weights;  // a folder; empty: first values
  // The vocabulary is the model's own, whatever the data are: it came with a file.
  bool own_vocabulary = false;
  std::vector<std::string> warnings;
};

// The folder that --model names, with weights and perhaps a tokenizer; empty when it names no folder.
std::filesystem::path model_folder(const TrainFlags& flags);

// Reads config.json at most. Throws Error(config) for flags that contradict the weights, and for a model that
// Terrace would compute differently.
ModelChoice choose_model(const TrainFlags& flags);

}  // namespace terrace
