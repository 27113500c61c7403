// The contents of the tier folders of a run's nvme paths before the run begins: none, the remains of a dead
// job, or a commit to go on from. Code here must never change, lock or remove anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/train/checkpoint/inventory.h>

namespace terrace {

struct TierContents {
  bool in_use = false;               // another job uses the folders
  bool has_commits = false;          // manifests are there; without any, the contents are worth nothing
  uint64_t commit_count = 0;         // with the retained ones
  bool paths_fit = false;            // the given paths are all those of one run
  std::optional<SavedState> newest;  // set if a run can go on from it, as far as manifests say
  std::string trouble;               // why no run can go on; empty without commits
};

TierContents look_for_commit(std::span<const std::filesystem::path> paths);

// Finds the commit of a run that is to be resumed. Throws Error(config) when there is no commit or the states
// are not on nvme, and Error(corrupt) when it is damaged.
SavedState require_commit(const TrainConfig& config);

}  // namespace terrace
