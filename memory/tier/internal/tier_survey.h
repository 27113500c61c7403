// What lies in tier folders: read by whoever starts on them and by whoever only looks. Changes nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/tier_space.h>

namespace terrace::tier {

struct FolderSurvey {
  std::string folder;  // "<path>/terrace-tier"
  std::vector<Entry> entries;
  std::optional<Label> label;
  std::string trouble;  // with the label; in words
};
// Throws Error(config) for a label of a newer format, and Error(io).
FolderSurvey survey_folder(int folder_fd, const std::string& folder);

// The folders in the order of their space; `trouble` says why they are not one whole space, and then the
// order is the given one.
struct Arrangement {
  std::vector<size_t> order;  // by path of the space: the position among those given
  std::string trouble;
};
Arrangement arrange(std::span<const FolderSurvey> folders);

// The commits that path 0 names, oldest first, without passing ones that a later one has taken the place of;
// those are `passed`.
struct EpochSurvey {
  std::vector<EpochFile> epochs;
  std::vector<EpochFile> passed;
};
EpochSurvey survey_epochs(const FolderSurvey& folder);

// The file's manifest, when it is the one of that commit of this space, for that many paths. Throws
// Error(corrupt), Error(config) and Error(io).
TierManifest load_epoch(const EpochFile& file, const SpaceId& space, size_t path_count);

// Why the tier files in these folders (in the order of the space) cannot hold what the manifest says; or
// nothing. Looks at names, sizes and marks.
std::string missing_blocks(const TierManifest& manifest, std::span<const FolderSurvey> folders,
                           std::span<const size_t> order);

// "2026-01-02 03:04 UTC", when it was written; "unknown" when the system does not say.
std::string date_of(const std::filesystem::path& file);

}  // namespace terrace::tier
