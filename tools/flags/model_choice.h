// The model that `terrace train` trains, and the length of its sequences: a released model by its name, a
// config.json, or a folder with weights.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/reference/model/transformer/model_config.h>

namespace terrace {

struct TrainFlags;

struct ModelChoice {
  ModelConfig config;
  std::filesystem::path weights;  // a folder; if empty, training begins with random values
  // `own_vocabulary`: the vocabulary came with a file, so it is the model's own, whatever the data are.
  bool own_vocabulary = false;
  std::vector<std::string> warnings;
};

// Returns the folder of --model, with weights and perhaps a tokenizer; empty if --model names no folder.
std::filesystem::path model_folder(const TrainFlags& flags);

// Reads no file except config.json. Throws Error(config) for flags that contradict the weights, and for a
// model that Terrace would compute differently.
ModelChoice choose_model(const TrainFlags& flags);

}  // namespace terrace
