#include <terrace/memory/tier/internal/tier_survey.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_folder.h>

namespace terrace::tier {

FolderSurvey survey_folder(int folder_fd, const std::string& folder) {
  FolderSurvey survey{folder, list_files(folder_fd, folder), std::nullopt, ""};
  const auto label = std::ranges::find_if(
      survey.entries, [](const Entry& entry) { return entry.kind == FileKind::label && entry.regular; });
  if (label == survey.entries.end()) {
    survey.trouble = folder + " has no label";
    return survey;
  }
  const std::string path = folder + "/" + label->name;
  try {
    survey.label = parse_label(io::read_whole_file(path, 2 * kLabelBytes), path);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::config || is_system_refusal(error)) throw;
    survey.trouble = path + " is damaged: " + error.parts().reason;
  }
  return survey;
}

Arrangement arrange(std::span<const FolderSurvey> folders) {
  Arrangement arrangement;
  for (size_t f = 0; f < folders.size(); ++f) arrangement.order.push_back(f);
  std::vector<size_t> order(folders.size(), folders.size());
  for (size_t f = 0; f < folders.size(); ++f) {
    const FolderSurvey& folder = folders[f];
    if (!folder.label) {
      arrangement.trouble = folder.trouble;
      return arrangement;
    }
    const Label& label = *folder.label;
    if (label.space != folders.front().label->space) {
      arrangement.trouble =
          fmt::format("{} is of another run than {}", folder.folder, folders.front().folder);
    } else if (label.path_count != folders.size()) {
      arrangement.trouble = fmt::format("{} is one of {} paths, and {} {} given", folder.folder,
                                        label.path_count, folders.size(), folders.size() == 1 ? "is" : "are");
    } else if (order[label.path_index] != folders.size()) {
      arrangement.trouble = fmt::format("{} and {} are copies of one folder",
                                        folders[order[label.path_index]].folder, folder.folder);
    }
    if (!arrangement.trouble.empty()) return arrangement;
    order[label.path_index] = f;
  }
  arrangement.order = std::move(order);
  return arrangement;
}

CommitSurvey survey_commits(const FolderSurvey& folder, uint64_t last) {
  CommitSurvey survey;
  uint64_t newest = 0;
  for (const Entry& entry : folder.entries) {
    const std::optional<CommitName> name = parse_commit_file_name(entry.name);
    if (entry.kind != FileKind::manifest || !entry.regular || !name) continue;
    const bool is_later = last > 0 && name->commit > last;
    if (!is_later) newest = std::max(newest, name->commit);
    (is_later ? survey.later : survey.commits)
        .push_back({name->commit, folder.folder + "/" + entry.name, name->retained});
  }
  const auto by_age = [](const CommitFile& one, const CommitFile& other) {
    return one.commit != other.commit ? one.commit < other.commit : one.retained < other.retained;
  };
  std::ranges::sort(survey.commits, by_age);
  std::ranges::sort(survey.later, by_age);
  const auto is_passed = [newest](const CommitFile& file) { return !file.retained && file.commit < newest; };
  std::ranges::copy_if(survey.commits, std::back_inserter(survey.passed), is_passed);
  std::erase_if(survey.commits, is_passed);
  return survey;
}

TierManifest load_commit(const CommitFile& file, const SpaceId& space, size_t path_count) {
  constexpr std::string_view kWhat = "the manifest of a commit";
  const std::string path = file.path.string();
  TierManifest manifest = parse_tier_manifest(io::read_whole_file(path, kLargestManifestBytes), path);
  if (manifest.space != space) corrupt(kWhat, path, "it is of another run than the folder it lies in");
  if (manifest.commit != file.commit) corrupt(kWhat, path, fmt::format("it is commit {}", manifest.commit));
  if (!manifest.stores.empty() && manifest.stores.front().slot_counts.size() != path_count)
    corrupt(kWhat, path, fmt::format("it is of {} paths", manifest.stores.front().slot_counts.size()));
  return manifest;
}

std::string missing_blocks(const TierManifest& manifest, std::span<const FolderSurvey> folders,
                           std::span<const size_t> order) {
  for (const StoreLayout& store : manifest.stores) {
    for (size_t p = 0; p < store.slot_counts.size() && p < order.size(); ++p) {
      if (store.slot_counts[p] == 0) continue;
      const FolderSurvey& folder = folders[order[p]];
      const std::string name = blocks_file_name(store.name);
      const auto entry = std::ranges::find(folder.entries, name, &Entry::name);
      if (entry == folder.entries.end()) return fmt::format("{}/{} is missing", folder.folder, name);
      if (!entry->ours || entry->bytes < store.slot_counts[p] * store.block_bytes + TierFolder::kMarkBytes)
        return fmt::format("{}/{} is not whole", folder.folder, name);
    }
  }
  return "";
}

std::string date_of(const std::filesystem::path& file) {
  struct stat status;
  std::tm parts{};
  if (lstat(file.c_str(), &status) != 0 || gmtime_r(&status.st_mtime, &parts) == nullptr) return "unknown";
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return {text.data(), size};
}

}  // namespace terrace::tier
