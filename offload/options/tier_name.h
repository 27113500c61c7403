// The folders of a run: those of OffloadOptions, or with a tier_name the sub-folders of that name. Nothing
// here looks at a drive.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/offload/options/offload_options.h>

namespace terrace {

// Returns the options with the paths that are in effect, and without the name that led to them. Throws
// Error(config) where the name is not that of one folder.
OffloadOptions with_tier_folders(OffloadOptions options);

// The folders that a run with these options uses on nvme, each once, those of the states first:
// look_at_tier() finds there what a run can go on from. Throws as with_tier_folders() does.
std::vector<std::filesystem::path> tier_folders(const OffloadOptions& options);

}  // namespace terrace
