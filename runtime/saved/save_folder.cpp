#include <terrace/runtime/saved/save_folder.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace::saved {
namespace {

namespace fs = std::filesystem;

uint64_t bytes_below(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code ignored;  // it is only told
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    std::error_code none;
    const uint64_t size = entry.file_size(none);
    if (!none) bytes += size;
  }
  return bytes;
}

// Removes a folder in which every name is that of a file of a save: nothing is found twice, and no link leads
// elsewhere.
void remove_names_in(const fs::path& folder) {
  const std::vector<std::string> names = io::names_in(folder, [](const std::string&) { return true; });
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) io::fail_folder("cannot remove the folder", folder, errno);
  int error = 0;
  for (const std::string& name : names) {
    if (unlinkat(fd, name.c_str(), 0) != 0 && errno != ENOENT) error = errno;
  }
  close(fd);
  if (error == 0 && rmdir(folder.c_str()) != 0) error = errno;
  if (error != 0) io::fail_folder("cannot remove the folder", folder, error);
}

void write_text(const fs::path& path, const std::string& text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace

SaveFolder::SaveFolder(fs::path folder, StateKind kind, Log& log)
    : path_(std::move(folder)), kind_(std::move(kind)), log_(log), process_(getpid()) {
  io::make_folders(path_);
  open_and_lock();
  try {
    finish_latest();
    clean();
  } catch (...) {
    close(fd_);
    throw;
  }
}

// A child that was forked meanwhile has the descriptor too, so closing it alone would not end the lock.
SaveFolder::~SaveFolder() {
  if (getpid() == process_) flock(fd_, LOCK_UN);
  close(fd_);
}

// The lock is on the folder itself, so that it leaves nothing behind.
void SaveFolder::open_and_lock() {
  fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) io::fail_folder("cannot open the checkpoint folder", path_, errno);
  int result;
  do {
    result = flock(fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  if (error == EWOULDBLOCK) {
    close(fd_);
    throw Error(ErrorKind::io, {"cannot save into the checkpoint folder", path_.string(),
                                "a job that runs saves its checkpoints there",
                                "give every job a checkpoint folder of its own"});
  }
  log_.warning_once(fmt::format("{} cannot be locked ({}): let no other job save there", path_.string(),
                                system_reason(error).text));
}

fs::path SaveFolder::final_path(std::string_view name) const {
  return path_ / name;
}

fs::path SaveFolder::partial_path(std::string_view name) const {
  return path_ / fmt::format(".{}{}", name, kPartialSuffix);
}

fs::path SaveFolder::replaced_path(std::string_view name) const {
  return path_ / fmt::format(".{}{}", name, kReplacedSuffix);
}

// A job died between the two names of its checkpoint.
void SaveFolder::finish_latest() {
  if (!io::is_there(path_ / kNextName)) return;
  if (const std::string name = completed_next(path_, kind_); !name.empty()) {
    write_text(path_ / kLatestName, name + "\n");
    log_.warning(fmt::format("{} in {} is the latest now: a job died while naming it", name, path_.string()));
  }
  remove_aside(kNextName);
}

void SaveFolder::clean() {
  const auto is_replaced = [&](const std::string& name) {
    return !state_of_aside(kind_, name, kReplacedSuffix).empty();
  };
  const auto is_partial = [&](const std::string& name) {
    return !state_of_aside(kind_, name, kPartialSuffix).empty();
  };
  for (const std::string& name : io::names_in(path_, is_replaced)) {
    const std::string state = state_of_aside(kind_, name, kReplacedSuffix);
    if (!io::is_there(path_ / state)) {
      io::rename_path(path_ / name, path_ / state);
      sync();
      log_.warning(
          fmt::format("{} in {} has its name back: a job died while replacing it", state, path_.string()));
    } else {
      log_.info(fmt::format("removing {} from {}: a newer {} took its place", name, path_.string(), state));
      remove_files_of(path_ / name);
    }
  }
  for (const std::string& name : io::names_in(path_, is_partial)) {
    log_.info(fmt::format("removing {} ({}) from {}: a job died while saving it", name,
                          format_bytes(bytes_below(path_ / name)), path_.string()));
    remove_files_of(path_ / name);
  }
  // What dies beside a state: texts that had not got their name, and what else its kind leaves.
  const auto is_left_aside = [&](const std::string& name) {
    return name == fmt::format("{}.new", kLatestName) || name == fmt::format("{}.new", kNextName) ||
           kind_.is_left_aside(name);
  };
  for (const std::string& name : io::names_in(path_, is_left_aside)) remove_aside(name);
}

// A file goes, never a folder: what is one under such a name is not of a save.
void SaveFolder::remove_aside(const std::string& name) const {
  const fs::path path = path_ / name;
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return;
  log_.warning(
      fmt::format("cannot remove {}: {}; remove it by hand", path.string(), system_reason(errno).text));
}

void SaveFolder::remove_files_of(const fs::path& folder) const {
  struct stat status;
  if (lstat(folder.c_str(), &status) != 0 && errno == ENOENT) return;
  try {
    if (const std::string foreign = foreign_name(folder, kind_); !foreign.empty()) {
      log_.warning(fmt::format("{} is left alone: it holds {}, which is not of a checkpoint", folder.string(),
                               foreign));
      return;
    }
    remove_names_in(folder);
  } catch (const Error& failure) {
    log_.warning(
        fmt::format("cannot remove {}: {}; remove it by hand", folder.string(), failure.parts().reason));
  }
}

bool SaveFolder::remove(const fs::path& state) const {
  if (const std::string foreign = foreign_name(state, kind_); !foreign.empty()) {
    log_.warning(
        fmt::format("{} is left alone: it holds {}, which is not of a checkpoint", state.string(), foreign));
    return false;
  }
  // Another name first: whoever finds a state's folder finds all of it.
  const fs::path aside = partial_path(state.filename().string());
  io::rename_path(state, aside);
  sync();
  remove_files_of(aside);
  return true;
}

void SaveFolder::place(std::string_view name, const std::string& manifest,
                       const PlaceOptions& options) const {
  write_text(partial_path(name) / kManifestName, manifest);  // and makes the names in the folder durable
  options.reached(PlaceMoment::manifest_written);
  if (options.set_latest) {
    write_text(path_ / kNextName, next_text(name, manifest));
    options.reached(PlaceMoment::next_written);
  }
  try {
    const fs::path replaced = move_into_place(name, options);
    sync();
    options.reached(PlaceMoment::in_place);
    if (options.set_latest) {
      write_latest(name);
      options.reached(PlaceMoment::latest_written);
    }
    remove_files_of(replaced);
  } catch (...) {
    if (options.set_latest) remove_aside(kNextName);
    throw;
  }
  if (options.set_latest) remove_aside(kNextName);
}

// Returns the path at which what it replaces lies afterwards.
fs::path SaveFolder::move_into_place(std::string_view name, const PlaceOptions& options) const {
  const fs::path partial = partial_path(name);
  const fs::path final = final_path(name);
  if (!io::is_there(final)) {
    io::rename_path(partial, final);
    return partial;
  }
  struct stat status;
  if (lstat(final.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    throw Error(ErrorKind::io, {"cannot replace the checkpoint", final.string(), "it is not a folder",
                                "Terrace made no such file: move it away"});
  }
  if (options.can_exchange && io::exchange_paths(partial, final)) return partial;
  // Between these two renames the earlier state is found under the name it has meanwhile: see state_folder().
  const fs::path replaced = replaced_path(name);
  io::rename_path(final, replaced);
  sync();
  options.reached(PlaceMoment::old_moved_away);
  io::rename_path(partial, final);
  return replaced;
}

void SaveFolder::write_latest(std::string_view name) const {
  try {
    write_text(path_ / kLatestName, std::string(name) + "\n");
  } catch (const Error& failure) {
    ErrorParts parts = failure.parts();
    parts.reason += "; the checkpoint itself is complete";
    parts.advice = fmt::format("resume by naming {}", final_path(name).string());
    throw Error(failure.kind(), std::move(parts));
  }
}

void SaveFolder::sync() const {
  io::sync_descriptor(fd_, path_);
}

}  // namespace terrace::saved
