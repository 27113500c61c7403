// The commits on the nvme paths of a run, as saved states: listed, verified and removed. Listing and
// verifying change and lock nothing, also beside the job that makes them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/runtime/train/checkpoint/inventory.h>

namespace terrace {

bool is_tier_path(const std::filesystem::path& path);  // holds a tier folder

struct TierListing {
  std::vector<SavedState> states;  // the oldest first
  bool in_use = false;             // by a job that is running
  std::string trouble;             // of the paths as a whole; empty: none
  // How many more paths the run has than were given: nothing can be said of its blocks without them, and
  // nothing is to be removed.
  uint32_t absent_paths = 0;
};
// `paths` are all those of one run.
TierListing list_epochs(std::span<const std::filesystem::path> paths);

// As verify_checkpoint(). A commit that its job replaces meanwhile is verified as far as it goes, and that is
// said to `log`.
uint64_t verify_epoch(std::span<const std::filesystem::path> paths, const SavedState& epoch,
                      FunctionRef<void(const BadBlock&)> bad, Log& log);

// Removes the commits that `goes` names, damaged ones too, and returns their manifests. Where none is left,
// the files of the tier go as well. Throws Error(io) when a job is using the paths.
std::vector<std::filesystem::path> prune_epochs(std::span<const std::filesystem::path> paths,
                                                FunctionRef<bool(const SavedState&)> goes, Log& log);

}  // namespace terrace
