// A survey of tier folders, for a run that starts on them and for listings. It changes nothing.
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
  std::string trouble;  // what is wrong with the label, in words
};
// Surveys one folder. Throws Error(config) for a label of a newer format, and Error(io).
FolderSurvey survey_folder(int folder_fd, const std::string& folder);

// The folders in the order of their space. When they are not one whole space, `trouble` says why and the
// order is the given one.
struct Arrangement {
  std::vector<size_t> order;  // by path of the space: the position in the given folders
  std::string trouble;
};
Arrangement arrange(std::span<const FolderSurvey> folders);

// The commits that path 0 names up to number `last` (0: all), oldest first. Passing ones that a later commit
// has replaced are in `passed` instead, and those behind `last` in `later`.
struct CommitSurvey {
  std::vector<CommitFile> commits;
  std::vector<CommitFile> passed;
  std::vector<CommitFile> later;
};
CommitSurvey survey_commits(const FolderSurvey& folder, uint64_t last = 0);

// Reads the manifest in `file`. Throws Error(corrupt), Error(config) and Error(io), also when it is not of
// that commit of this space, with that many paths.
TierManifest load_commit(const CommitFile& file, const SpaceId& space, size_t path_count);

// Why the tier files in these folders (in the order of the space) cannot hold the manifest's blocks; empty
// when they can. It looks at names, sizes and marks.
std::string missing_blocks(const TierManifest& manifest, std::span<const FolderSurvey> folders,
                           std::span<const size_t> order);

// The time at which `file` was written, "2026-01-02 03:04 UTC"; "unknown" when the system does not say.
std::string date_of(const std::filesystem::path& file);

}  // namespace terrace::tier
