// The commits on the nvme paths of a run, of one rank or of several, as saved states: listed, verified and
// removed. Listing and verifying change and lock nothing, and may run beside the job that makes the commits.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/runtime/checkpoint/inventory.h>

namespace terrace {

bool is_tier_path(const std::filesystem::path& path);  // holds a tier folder, or those of ranks

// Throws Error(config) where this is the folder of one of several ranks, which alone is no saved state.
void require_whole_set(const std::filesystem::path& path);

struct TierListing {
  std::vector<SavedState> states;  // the oldest first
  bool in_use = false;             // a running job uses the paths
  std::string trouble;             // a fault of the paths as a whole; empty: none
  // The number of the run's paths that were not given. Without them nothing can be said of its blocks, and
  // nothing may be removed.
  uint32_t absent_paths = 0;
};
// `paths` are all the paths of one run.
TierListing list_commits(std::span<const std::filesystem::path> paths);

// Verifies a commit as verify_checkpoint() does. If its job replaces the commit meanwhile, `log` says that it
// was verified only in part.
uint64_t verify_commit(std::span<const std::filesystem::path> paths, const SavedState& commit,
                       FunctionRef<void(const BadBlock&)> bad, Log& log);

// Removes the commits that `goes` names, damaged ones too, and returns their manifests. If no commit is left,
// the files of the tier go as well. Throws Error(io) when a job is using the paths.
std::vector<std::filesystem::path> prune_commits(std::span<const std::filesystem::path> paths,
                                                 FunctionRef<bool(const SavedState&)> goes, Log& log);

}  // namespace terrace
