// The nvme folders of a run, as its configuration names them.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Returns every path on which the configuration places something, each once, those of the states first. One
// folder may be given by two names.
std::vector<std::filesystem::path> tier_paths(const PlacementConfig& placement);

}  // namespace terrace
