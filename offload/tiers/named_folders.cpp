#include <terrace/offload/tiers/named_folders.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include <terrace/aio/file.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/offload/options/tier_name.h>

namespace terrace {
namespace {

bool lock(int fd, int operation) {
  int result;
  do {
    result = flock(fd, operation | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// Whether the open folder still has that name.
bool is_named(int fd, const std::filesystem::path& folder) {
  struct stat held, named;
  return fstat(fd, &held) == 0 && stat(folder.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

// A link to a folder is the user's.
bool is_terraces(const std::filesystem::path& folder) {
  struct stat status;
  return lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
         (status.st_mode & 07777) == NamedFolders::kMode;
}

}  // namespace

NamedFolders::NamedFolders(const OffloadOptions& options, Log& log)
    : log_(log), events_(options.hooks.file_events), owner_(getpid()) {
  if (options.tier_name.empty() || options.dry) return;
  try {
    for (const std::filesystem::path& folder : tier_folders(options)) hold(folder);
  } catch (...) {
    remove_empty();
    let_go();
    throw;
  }
}

NamedFolders::~NamedFolders() {
  if (getpid() == owner_) remove_empty();
  let_go();
}

// A job that ends may remove the folder between any two steps.
void NamedFolders::hold(const std::filesystem::path& folder) {
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (try_to_hold(folder, make(folder))) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw Error(ErrorKind::io,
              {"cannot use the folder of a tier", folder.string(), "other jobs keep making and removing it",
               "give every job a tier name of its own"});
}

// Returns whether it was missing.
bool NamedFolders::make(const std::filesystem::path& folder) {
  if (mkdir(folder.c_str(), kMode) != 0) {
    if (errno == EEXIST) return false;
    throw Error(ErrorKind::io, {"cannot make the folder of a tier", folder.string(), system_reason(errno),
                                Option::nvme_path + " must name a folder that this user may write to"});
  }
  if (events_ != nullptr) events_->folder_created(folder);
  try {
    io::sync_folder(folder.parent_path(), events_);
  } catch (const Error& error) {
    log_.warning(std::string("a power cut may lose the tier folder: ") + error.in(log_.door()));
  }
  return true;
}

// Returns false where it was removed meanwhile. What is no folder, or cannot be opened, is refused by the
// tier, which says why.
bool NamedFolders::try_to_hold(const std::filesystem::path& folder, bool is_made) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT || std::filesystem::is_symlink(folder);
  const bool is_locked = lock(fd, LOCK_SH);
  if ((!is_locked && errno == EWOULDBLOCK) || !is_named(fd, folder)) {
    close(fd);
    return false;
  }
  held_.push_back({folder, fd, is_locked, is_made || is_terraces(folder)});
  return true;
}

// What is not empty holds commits, or files that are not Terrace's.
void NamedFolders::remove_empty() {
  for (const Held& held : held_) {
    if (!held.is_terraces || (held.is_locked && !lock(held.fd, LOCK_EX))) continue;
    if (rmdir(held.path.c_str()) == 0) {
      if (events_ != nullptr) events_->removed(held.path);
    } else if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) {
      log_.warning("cannot remove " + held.path.string() + ": " + system_reason(errno).text);
    }
  }
}

// A child that was forked meanwhile has the descriptors too, so closing them alone would not end the locks.
void NamedFolders::let_go() {
  for (const Held& held : held_) {
    if (held.is_locked && getpid() == owner_) flock(held.fd, LOCK_UN);
    close(held.fd);
  }
  held_.clear();
}

}  // namespace terrace
