#include <terrace/memory/tier/tier_space.h>

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#include <terrace/aio/aside_file.h>
#include <terrace/aio/file.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/internal/tier_survey.h>

namespace terrace {
namespace {

[[noreturn]] void will_not_remove(const std::string& folder, std::string reason) {
  throw Error(ErrorKind::config, {"will not remove the training state in", folder, std::move(reason),
                                  "name another folder; or go on training from it (" + Option::resume +
                                      "), or remove it (" + Option::discard_commits + ")"});
}

[[noreturn]] void cannot_resume(const std::string& subject, std::string reason, ErrorKind kind) {
  throw Error(kind, {"cannot resume from the nvme tier in", subject, std::move(reason),
                     "name the paths of the run that is to go on; or go on from a checkpoint, with " +
                         Option::discard_commits});
}

// Refuses a user's file with a name that is going to be written, and a tier file that has lost its mark.
// Files of other stores are left alone.
void require_no_impostor(const std::string& folder, const tier::Entry& entry) {
  constexpr std::array<std::string_view, 5> kStores = {"records", "params", "frozen", "grads", "acts"};
  const bool is_blocks = entry.kind == tier::FileKind::blocks || entry.kind == tier::FileKind::blocks_aside;
  const bool is_needed = !is_blocks || std::ranges::any_of(kStores, [&](std::string_view store) {
    return entry.name.starts_with(tier::blocks_file_name(store));
  });
  if (entry.ours || !is_needed) return;
  throw Error(ErrorKind::config, {"cannot use the nvme path", folder + "/" + entry.name,
                                  "it has the name of a file of the tier and is none",
                                  "move it away, or choose another " + Option::nvme_path});
}

std::vector<tier::FolderSurvey> survey(const std::vector<std::unique_ptr<TierFolder>>& folders) {
  std::vector<tier::FolderSurvey> surveys;
  for (const auto& folder : folders) surveys.push_back(tier::survey_folder(folder->fd(), folder->path()));
  return surveys;
}

}  // namespace

SpaceId draw_space_id() {
  SpaceId id;
  ssize_t size;
  do {
    size = getrandom(id.bytes.data(), id.bytes.size(), 0);
  } while (size < 0 && errno == EINTR);
  TERRACE_ASSERT(size == static_cast<ssize_t>(id.bytes.size()), "getrandom: " + system_reason(errno));
  return id;
}

TierSpace::TierSpace(TierSpaceOptions options, Log& log)
    : options_(std::move(options)), log_(log), paths_(options_.paths), next_number_(options_.least_number) {
  TERRACE_ASSERT(!paths_.empty(), "a space has at least one path");
  TERRACE_ASSERT(!options_.dry || options_.start == TierStart::fresh, "a plan goes on from no commit");
  if (options_.dry) {
    id_ = options_.id ? *options_.id : draw_space_id();
  } else {
    lock_folders();
    options_.start == TierStart::fresh ? start_fresh() : start_resumed();
  }
  std::vector<double> rates;
  for (const TierPath& path : paths_) rates.push_back(path.bytes_per_second);
  balancer_ = std::make_unique<PathBalancer>(
      rates, options_.clock != nullptr ? *options_.clock : static_cast<const Clock&>(steady_clock_));
}

// Manifests go first, because they say that there is something to go on from. Path 0 goes last, because the
// folders of the others would be refused without its label. So a crash on the way leaves only what the next
// job removes.
TierSpace::~TierSpace() {
  try {
    for (const std::unique_ptr<TierFolder>& folder : folders_)
      if (!folder->keeps_files()) folder->remove_manifests();
    for (size_t p = folders_.size(); p-- > 1;)
      if (!folders_[p]->keeps_files()) remove_durably(*folders_[p]);
  } catch (const Error& failure) {
    log_.warning(failure);
  } catch (const std::exception& failure) {
    log_.warning(failure.what());
  }
  while (!folders_.empty()) folders_.pop_back();
}

// The removal is made durable: a power cut must not bring back this label when that of path 0 is gone.
TierFolder::Removed TierSpace::remove_durably(TierFolder& folder) {
  const TierFolder::Removed removed = folder.remove_files();
  if (removed.files > 0) io::sync_folder(folder.path(), options_.events);
  return removed;
}

// Files that are found stay until the start has succeeded; an empty folder does not.
void TierSpace::lock_folders() {
  for (const TierPath& path : paths_) {
    folders_.push_back(std::make_unique<TierFolder>(path.path.string(), log_, options_.events));
    TierFolder& folder = *folders_.back();
    folder.keep_files(!folder.was_made());
    folder.keep_files(!tier::list_files(folder.fd(), folder.path()).empty());
  }
}

void TierSpace::keep_files(bool keep) {
  for (const std::unique_ptr<TierFolder>& folder : folders_) folder->keep_files(keep);
}

void TierSpace::start_fresh() {
  require_nothing_to_lose();
  for (const std::unique_ptr<TierFolder>& folder : folders_) {
    for (const tier::Entry& entry : tier::list_files(folder->fd(), folder->path()))
      require_no_impostor(folder->path(), entry);
  }
  remove_leftovers();
  id_ = options_.id ? *options_.id : draw_space_id();
  write_labels();
  keep_files(false);
}

// Files go in the same order as in the destructor.
void TierSpace::remove_leftovers() {
  const std::vector<tier::FolderSurvey> surveys = survey(folders_);
  std::vector<TierFolder::Removed> removed(folders_.size());
  for (size_t p = 0; p < folders_.size(); ++p) removed[p] = folders_[p]->remove_manifests();
  for (const bool first : {false, true}) {
    for (size_t p = 0; p < folders_.size(); ++p) {
      if ((surveys[p].label && surveys[p].label->path_index == 0) != first) continue;
      const TierFolder::Removed others = remove_durably(*folders_[p]);
      removed[p].files += others.files;
      removed[p].bytes += others.bytes;
    }
  }
  for (size_t p = 0; p < folders_.size(); ++p) {
    if (removed[p].files == 0) continue;
    log_.info(fmt::format("removed {} that an earlier run left in {}", format_bytes(removed[p].bytes),
                          folders_[p]->path()));
  }
}

void TierSpace::require_nothing_to_lose() {
  const std::vector<tier::FolderSurvey> folders = survey(folders_);
  for (const tier::FolderSurvey& folder : folders) {
    for (const CommitFile& file : tier::survey_commits(folder).commits) {
      std::string state = "is damaged";
      try {
        parse_tier_manifest(io::read_whole_file(file.path, kLargestManifestBytes), file.path);
        state = "was written " + tier::date_of(file.path);
      } catch (const Error& error) {
        // A newer Terrace wrote it, or it may be whole: it is not removed.
        if (error.kind() == ErrorKind::config || is_system_refusal(error)) throw;
      }
      if (!options_.discard_commits)
        will_not_remove(folder.folder, fmt::format("its commit {} {}", file.commit, state));
    }
    if (options_.discard_commits || !folder.label || folder.label->path_index == 0) continue;
    const bool first_is_here = std::ranges::any_of(folders, [&](const tier::FolderSurvey& other) {
      return other.label && other.label->path_index == 0 && other.label->space == folder.label->space;
    });
    if (!first_is_here)
      will_not_remove(folder.folder, fmt::format("it is path {} of {} of a run whose first path is not given",
                                                 folder.label->path_index + 1, folder.label->path_count));
  }
}

// Labels are written before any other file: from then on a folder says whose files it holds.
void TierSpace::write_labels() {
  const auto count = static_cast<uint32_t>(folders_.size());
  for (uint32_t p = 0; p < count; ++p) {
    const auto bytes = tier::serialise(tier::Label{.space = id_, .path_index = p, .path_count = count});
    io::write_file_atomically(folders_[p]->path() + "/" + tier::kLabelName, bytes, options_.events);
    try {
      io::sync_folder(paths_[p].path, options_.events);  // makes the name of the folder itself durable
    } catch (const Error& error) {
      log_.warning(std::string("a power cut may lose the tier folder: ") + error.in(log_.door()));
    }
  }
}

void TierSpace::start_resumed() {
  const std::vector<tier::FolderSurvey> folders = survey(folders_);
  const tier::Arrangement arrangement = tier::arrange(folders);
  if (!arrangement.trouble.empty()) {
    const bool damaged = std::ranges::any_of(folders, [](const tier::FolderSurvey& folder) {
      return !folder.label && std::ranges::any_of(folder.entries, [](const tier::Entry& entry) {
        return entry.kind == tier::FileKind::label;
      });
    });
    cannot_resume(folders.front().folder, arrangement.trouble,
                  damaged ? ErrorKind::corrupt : ErrorKind::config);
  }
  std::vector<TierPath> paths;
  std::vector<std::unique_ptr<TierFolder>> ordered;
  for (const size_t position : arrangement.order) {
    paths.push_back(paths_[position]);
    ordered.push_back(std::move(folders_[position]));
  }
  paths_ = std::move(paths);
  folders_ = std::move(ordered);
  const tier::FolderSurvey& first = folders[arrangement.order.front()];
  id_ = first.label->space;
  const tier::CommitSurvey found = tier::survey_commits(first, options_.commit);
  if (found.commits.empty()) cannot_resume(first.folder, "nothing was committed there", ErrorKind::config);
  if (options_.commit > 0 && found.commits.back().commit != options_.commit)
    cannot_resume(first.folder, fmt::format("commit {} is not there", options_.commit), ErrorKind::corrupt);
  take_up_commits(found.commits);
  const std::string missing =
      tier::missing_blocks(read_commit(commits_.back().commit), folders, arrangement.order);
  if (!missing.empty()) cannot_resume(first.folder, missing, ErrorKind::corrupt);
  if (!found.later.empty()) {
    for (const CommitFile& file : found.later) remove_file(file.path);
    // Their slots are written again, so a power cut must not bring their manifests back.
    io::sync_folder(first.folder, options_.events);
  }
  for (const CommitFile& file : found.passed) remove_file(file.path);
  if (options_.retain) retain_commit(commits_.back().commit);
  for (const std::vector<CommitFile>* files : {&found.commits, &found.later}) {
    if (!files->empty()) next_number_ = std::max(next_number_, files->back().commit + 1);
  }
  for (const tier::FolderSurvey& folder : folders) remove_unnamed(folder);
  // An earlier Terrace does not see the names of the manifests to come, so a label of this version makes it
  // refuse the folders.
  if (std::ranges::any_of(folders, [](const tier::FolderSurvey& folder) {
        return folder.label->version < tier::kLabelVersion;
      }))
    write_labels();
  keep_files(true);
}

// Removes what a crash cut short, and tier files that are in no commit.
void TierSpace::remove_unnamed(const tier::FolderSurvey& folder) {
  std::set<std::string> named;
  for (const CommitFile& file : commits_) {
    for (const StoreLayout& store : read_commit(file.commit).stores)
      named.insert(tier::blocks_file_name(store.name));
  }
  for (const tier::Entry& entry : folder.entries) {
    const bool aside = entry.kind == tier::FileKind::aside || entry.kind == tier::FileKind::blocks_aside;
    const bool unnamed = entry.kind == tier::FileKind::blocks && !named.contains(entry.name);
    if (aside) require_no_impostor(folder.folder, entry);
    if (entry.ours && (aside || unnamed)) remove_file(folder.folder + "/" + entry.name);
  }
}

// The newest commit must be whole: going on from an older one is decided elsewhere.
void TierSpace::take_up_commits(const std::vector<CommitFile>& found) {
  for (const CommitFile& file : found) {
    try {
      tier::load_commit(file, id_, folders_.size());
      commits_.push_back(file);
    } catch (const Error& error) {
      const bool is_damaged = error.kind() != ErrorKind::config && !is_system_refusal(error);
      if (!is_damaged || file.commit == found.back().commit) throw;
      log_.warning(
          fmt::format("a retained commit is lost, and its slots are used again: {}", error.in(log_.door())));
    }
  }
}

void TierSpace::remove_file(const std::filesystem::path& path) {
  if (unlink(path.c_str()) != 0)
    throw Error(ErrorKind::io,
                {"cannot remove the file", path.string(), system_reason(errno), "remove it by hand"});
  if (options_.events != nullptr) options_.events->removed(path);
}

std::vector<CommitFile>::iterator TierSpace::find_commit(uint64_t commit) {
  const auto found = std::ranges::find(commits_, commit, &CommitFile::commit);
  TERRACE_ASSERT(found != commits_.end(), "there is no commit " + std::to_string(commit));
  return found;
}

TierManifest TierSpace::read_commit(uint64_t commit) const {
  const auto found = std::ranges::find(commits_, commit, &CommitFile::commit);
  TERRACE_ASSERT(found != commits_.end(), "there is no commit " + std::to_string(commit));
  return tier::load_commit(*found, id_, folders_.size());
}

uint64_t TierSpace::write_commit(const TierManifest& manifest, bool& may_be_there) {
  may_be_there = false;
  TERRACE_ASSERT(manifest.space == id_, "a manifest of another space");
  TERRACE_ASSERT(commits_.empty() || manifest.commit > commits_.back().commit,
                 "commit " + std::to_string(manifest.commit) + " is not later than those before");
  const std::vector<std::byte> bytes = serialise(manifest);
  next_number_ = manifest.commit + 1;  // even if it fails: a crash may bring it back
  if (options_.dry) {
    commits_.push_back({manifest.commit, {}, false});
    return bytes.size();
  }
  for (const std::unique_ptr<TierFolder>& folder : folders_) folder->require_held();
  const CommitFile file{manifest.commit,
                        folders_.front()->path() + "/" + tier::commit_file_name({.commit = manifest.commit}),
                        false};
  io::AsideFile aside(file.path, {.what = "the manifest",
                                  .advice = "see that the folder is there and that its drive works",
                                  .events = options_.events});
  aside.write(0, bytes);
  aside.sync();
  may_be_there = true;
  aside.publish();
  commits_.push_back(file);
  return bytes.size();
}

void TierSpace::remove_passed() {
  const uint64_t last = commits_.empty() ? 0 : commits_.back().commit;
  const auto is_passed = [last](const CommitFile& file) { return !file.retained && file.commit < last; };
  for (const CommitFile& file : commits_) {
    if (!is_passed(file) || options_.dry) continue;
    try {
      remove_file(file.path);
    } catch (const Error& error) {
      log_.warning(error);
    }
  }
  std::erase_if(commits_, is_passed);
}

void TierSpace::retain_commit(uint64_t commit) {
  CommitFile& file = *find_commit(commit);
  if (file.retained) return;
  const std::filesystem::path to =
      folders_.front()->path() + "/" + tier::commit_file_name({.commit = commit, .retained = true});
  if (rename(file.path.c_str(), to.c_str()) != 0)
    throw Error(ErrorKind::io, {"cannot rename the manifest", file.path.string(), system_reason(errno),
                                "see that its drive works"});
  if (options_.events != nullptr) options_.events->renamed(file.path, to);
  file.path = to;
  file.retained = true;
  io::sync_folder(folders_.front()->path(), options_.events);
}

void TierSpace::remove_commit(uint64_t commit) {
  const auto file = find_commit(commit);
  remove_file(file->path);
  commits_.erase(file);
  // The slots of the commit are written again, so a power cut must not bring its manifest back.
  io::sync_folder(folders_.front()->path(), options_.events);
}

}  // namespace terrace
