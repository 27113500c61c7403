// The contents of the tier folders of a run's nvme paths before the run begins: none, the remains of a dead
// job, or a commit to go on from. Code here must never change, lock or remove anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/comm/operations/communicator.h>
#include <terrace/offload/tiers/common_tier.h>
#include <terrace/runtime/checkpoint/inventory.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// "/mnt/a, /mnt/b", for what is said of them.
std::string text_of_paths(std::span<const std::filesystem::path> paths, std::string_view between = ", ");

struct TierContents {
  bool is_present = false;           // files of a tier are there
  bool in_use = false;               // another job uses the folders
  bool has_commits = false;          // manifests are there; without any, the contents are worth nothing
  uint64_t commit_count = 0;         // with the retained ones, and of several ranks the damaged one
  std::vector<uint64_t> whole;       // of several ranks: CommonTier::whole
  uint64_t commit = 0;               // number of the newest where it is whole, whichever program's
  RecordLayout layout = {};          // of its records
  bool paths_fit = false;            // the given paths are all those of one run
  std::optional<SavedState> newest;  // set if a run can go on from it, as far as manifests say
  bool is_of_other_program =
      false;            // SavedState::is_of_other_program of the newest: no run can go on from it
  std::string trouble;  // why no run can go on; empty without commits
};

// `commit` is the newest that counts; 0: there is no such limit.
TierContents look_for_commit(std::span<const std::filesystem::path> paths, uint64_t commit = 0);
// What is there for this rank's run. Of several ranks every one calls it and gets what all have in common.
TierContents look_for_commit(const PlacementConfig& placement, Communicator* ranks);

// What the shards of a state have in common, as this process sees it; `first` is the paths of one of them.
TierContents contents_of(const CommonTier& common, std::span<const std::filesystem::path> first);

// Finds the commit of this rank's run that is to be resumed: that of number `commit`, or the newest with 0.
// Throws Error(config) when there is no commit, when it is another program's, or when the states are not on
// nvme, and Error(corrupt) when it is damaged.
SavedState require_commit(const TrainConfig& config, uint64_t commit = 0);
// The same, where these are the contents.
SavedState require_commit(const TrainConfig& config, TierContents contents);

}  // namespace terrace
