// A configuration, written as the file that gives it.
#pragma once

#include <string>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Returns a DeepSpeed JSON file, in lines, that resolves to `config`: every key that was given, whatever gave
// it, with the batch and the stage that its placements need.
std::string config_file_json(const TrainConfig& config);

}  // namespace terrace
