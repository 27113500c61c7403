// look_at_tier(): reads what tier folders hold without taking them up. Declared in tier_space.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/memory/tier/internal/descriptor.h>
#include <terrace/memory/tier/internal/tier_survey.h>
#include <terrace/memory/tier/tier_space.h>

namespace terrace {
namespace {

using tier::Descriptor;

// What cannot be opened may well hold a commit, so it is not taken for an empty one.
[[noreturn]] void cannot_look(const std::string& path, int error) {
  throw Error(ErrorKind::io,
              {"cannot look into the tier folder", path, system_reason(error), "see that you may read it"});
}

// Takes a shared lock for a moment; a job that starts at that moment tries again.
bool is_locked(int folder_fd, const std::string& folder) {
  const Descriptor lock(openat(folder_fd, tier::kLockName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (lock.get() < 0) {
    if (is_absence(errno) || errno == ELOOP || errno == ENXIO) return false;
    cannot_look(folder + "/" + tier::kLockName, errno);
  }
  return flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FoundTier look_once(std::span<const std::filesystem::path> paths, uint64_t commit) {
  FoundTier found;
  std::vector<tier::FolderSurvey> folders;
  for (const std::filesystem::path& path : paths) {
    const std::string name = (path / tier::kFolderName).string();
    const Descriptor folder(open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder.get() < 0) {
      if (!is_absence(errno) && errno != ELOOP) cannot_look(name, errno);
      folders.push_back({name, {}, std::nullopt, name + ": " + system_reason(errno)});
      continue;
    }
    try {
      folders.push_back(tier::survey_folder(folder.get(), name));
    } catch (const Error& error) {
      if (is_system_refusal(error)) throw;
      folders.push_back({name, tier::list_files(folder.get(), name), std::nullopt, error.without_advice()});
    }
    found.present |= std::ranges::any_of(folders.back().entries, &tier::Entry::regular);
    found.in_use |= is_locked(folder.get(), name);
  }
  if (!found.present) return found;
  const tier::Arrangement arrangement = tier::arrange(folders);
  found.trouble = arrangement.trouble;
  found.paths_fit = arrangement.trouble.empty();
  for (const tier::FolderSurvey& folder : folders) {
    const tier::CommitSurvey survey = tier::survey_commits(folder);
    found.has_manifests |= !survey.commits.empty();
    for (const std::vector<CommitFile>* const files : {&survey.passed, &survey.commits})
      found.manifests.insert(found.manifests.end(), files->begin(), files->end());
    if (folder.label) found.path_count = std::max(found.path_count, folder.label->path_count);
  }
  const auto note = [&](std::string trouble) {
    if (found.trouble.empty()) found.trouble = std::move(trouble);
  };
  for (const tier::FolderSurvey& folder : folders) {
    if (!folder.label || folder.label->path_index != 0) continue;
    found.id = folder.label->space;
    tier::CommitSurvey survey = tier::survey_commits(folder, commit);
    const std::vector<CommitFile> commits = std::move(survey.commits);
    found.passed = std::move(survey.passed);
    if (!commits.empty()) found.greatest = commits.back().commit;
    for (const CommitFile& file : commits) {
      try {
        found.newest = tier::load_commit(file, folder.label->space, folder.label->path_count);
        found.commit = file.commit;
        found.commits.push_back(file);
      } catch (const Error& error) {
        if (is_system_refusal(error)) throw;
        if (file.commit == commits.back().commit) note(error.without_advice());
      }
    }
    break;
  }
  if (found.commits.empty()) note("nothing was committed there");
  if (found.trouble.empty()) note(tier::missing_blocks(found.newest, folders, arrangement.order));
  found.whole = found.trouble.empty();
  return found;
}

}  // namespace

// A running job may replace a manifest between the look at its name and the one at its bytes, so a few looks
// are taken.
FoundTier look_at_tier(std::span<const std::filesystem::path> paths, uint64_t commit) {
  constexpr int kLooks = 3;
  FoundTier found = look_once(paths, commit);
  for (int look = 1; look < kLooks && found.in_use && !found.whole; ++look) found = look_once(paths, commit);
  return found;
}

}  // namespace terrace
