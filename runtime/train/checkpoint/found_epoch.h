// What the tier folders of a run's nvme paths hold before the run begins: nothing, what a dead job left, or
// a commit to go on from. It must never change, lock or remove anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/train/checkpoint/epoch_info.h>

namespace terrace {

struct FoundEpoch {
  uint64_t number = 0;
  EpochInfo info;
  std::filesystem::path manifest;  // its file
  bool has_older_epochs = false;   // beside it: damage of this one must not cost those
};

struct TierContents {
  bool in_use = false;               // another job has it
  bool has_epochs = false;           // manifests are there; without any, what is there is worth nothing
  uint64_t epoch_count = 0;          // retained ones too
  bool paths_fit = false;            // they are all the paths of one run
  std::optional<FoundEpoch> newest;  // when it can be gone on from, as far as manifests say
  std::string trouble;               // why it cannot be; empty without commits
};

// Every path that the configuration has something on, those of the states first, no two alike.
std::vector<std::filesystem::path> tier_paths(const PlacementConfig& placement);
TierContents look_for_epoch(std::span<const std::filesystem::path> paths);

// Of a run that is to be taken up. Throws Error(config) where there is no commit, or with states that are not
// on nvme, and Error(corrupt) where it is damaged.
FoundEpoch require_epoch(const TrainConfig& config);

}  // namespace terrace
