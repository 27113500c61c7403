#include <terrace/memory/tier/tier_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/internal/tier_files.h>

namespace terrace {
namespace {

constexpr std::string_view kMarkText =
    "terrace tier file: part of the state of a training run, of no use to any other\n";

[[noreturn]] void fail(const std::string& path, const Reason& reason, const Wording& advice,
                       ErrorCause cause = ErrorCause::other) {
  throw Error(ErrorKind::io, {"cannot use the nvme path", path, reason, advice, cause});
}

Wording advice_for(int error) {
  if (error == ENOENT)
    return "create the folder, or set " + Option::nvme_path + " to one on a fast local disk";
  if (error == ENOTDIR) return Option::nvme_path + " must name a folder";
  if (error == EACCES || error == EPERM || error == EROFS) return "choose a path that this user may write to";
  return "";
}

bool same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

// A lock file is one that a job wrote or began to write; a power cut may leave zeros of it. A user's file
// that only has the name is not written over.
bool is_lock_file(int fd) {
  constexpr std::string_view kBegin = "pid ";
  constexpr std::string_view kZeros("\0\0\0\0", kBegin.size());
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::array<char, kBegin.size()> text{};
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  const std::string_view begin(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return size == 0 || begin == kBegin || begin == kZeros;
}

std::string text_of_lock(int lock_fd) {
  std::array<char, 512> text{};
  const ssize_t size = pread(lock_fd, text.data(), text.size() - 1, 0);
  return {text.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

// Whether the job that wrote the lock is this process. The same number in another container is another
// process, which is told by the open files of this one.
bool is_held_by_this_process(int lock_fd) {
  if (!text_of_lock(lock_fd).starts_with("pid " + std::to_string(getpid()) + "\n")) return false;
  struct stat lock;
  if (fstat(lock_fd, &lock) != 0) return false;
  std::error_code failure;
  std::filesystem::directory_iterator entry("/proc/self/fd", failure);
  if (failure) return true;  // there is no /proc
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    struct stat open;
    const std::filesystem::path& path = entry->path();
    if (path.filename() != std::to_string(lock_fd) && stat(path.c_str(), &open) == 0 && same_file(open, lock))
      return true;
  }
  return false;
}

// Returns the text of a lock as part of a sentence: "pid 12, host a, started 2026-01-02T03:04:05Z".
std::string holder_of(int lock_fd) {
  std::string holder = text_of_lock(lock_fd);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  for (size_t at = holder.find('\n'); at != std::string::npos; at = holder.find('\n', at))
    holder.replace(at, 1, ", ");
  return holder.empty() ? "another job" : "another job (" + holder + ")";
}

}  // namespace

TierFolder::TierFolder(const std::string& path, Log& log, io::FileEvents* events)
    : folder_(path + (path.ends_with('/') ? "" : "/") + std::string(tier::kFolderName)),
      log_(log),
      events_(events),
      owner_(getpid()) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) fail(path, system_reason(errno), advice_for(errno));
  if (!S_ISDIR(status.st_mode)) fail(path, system_reason(ENOTDIR), advice_for(ENOTDIR));
  try {
    // A job that ends removes its folder, so a job that starts at that moment may see it vanish between any
    // two steps.
    constexpr int kAttempts = 100;
    bool ours = false;
    for (int attempt = 0; attempt < kAttempts && !ours; ++attempt) {
      close_descriptors();
      ours = open_folder() && take_lock();
    }
    if (!ours)
      fail(folder_, "other jobs keep creating and removing it",
           "give every job a " + Option::nvme_path + " of its own");
    write_lock_text();
  } catch (...) {
    remove_what_was_made();
    close_descriptors();
    throw;
  }
}

TierFolder::~TierFolder() {
  if (getpid() == owner_ && !keep_files_) {
    try {
      remove_files();
      remove_folder();
    } catch (const Error& failure) {
      log_.warning(failure);
      remove_what_was_made();
    } catch (const std::exception& failure) {
      log_.warning(failure.what());
      remove_what_was_made();
    }
  }
  close_descriptors();
}

void TierFolder::remove_folder() {
  // The lock file goes while the lock is still held: a job that has opened it finds that it is gone, and
  // starts again.
  if (unlinkat(folder_fd_, tier::kLockName, 0) != 0)
    log_.warning("cannot remove " + folder_ + "/lock: " + system_reason(errno).text);
  if (rmdir(folder_.c_str()) == 0) {
    if (events_ != nullptr) events_->removed(folder_);
  } else {
    const bool foreign = errno == ENOTEMPTY || errno == EEXIST;
    log_.info(folder_ +
              " stays: " + (foreign ? "it holds files that are not Terrace's" : system_reason(errno).text));
  }
}

// Of a start that is refused: the folder goes if nothing but the lock is in it, without a look into it, for
// which a descriptor may be lacking.
void TierFolder::remove_what_was_made() {
  if (!was_made_) return;
  if (is_locked_) unlinkat(folder_fd_, tier::kLockName, 0);
  if (rmdir(folder_.c_str()) == 0 && events_ != nullptr) events_->removed(folder_);
}

void TierFolder::close_descriptors() {
  for (int* const fd : {&lock_fd_, &folder_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

bool TierFolder::open_folder() {
  was_made_ = mkdir(folder_.c_str(), 0700) == 0;
  if (was_made_) {
    if (events_ != nullptr) events_->folder_created(folder_);
  } else if (errno != EEXIST) {
    fail(folder_, system_reason(errno), advice_for(errno));
  }
  folder_fd_ = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_fd_ < 0) {
    if (errno == ENOENT) return false;
    const bool not_folder = errno == ENOTDIR || errno == ELOOP;
    fail(folder_, not_folder ? "it is not a folder" : system_reason(errno),
         not_folder ? "remove it, or choose another " + Option::nvme_path : advice_for(errno));
  }
  struct stat status;
  if (fstat(folder_fd_, &status) != 0) fail(folder_, system_reason(errno), "");
  if (status.st_uid != geteuid()) {
    fail(folder_, "it belongs to user " + std::to_string(status.st_uid),
         "choose a " + Option::nvme_path + " of your own");
  }
  // Tier files hold the training state unencrypted, so only their owner may read the folder.
  if ((status.st_mode & 0777) != 0700 && fchmod(folder_fd_, 0700) != 0)
    fail(folder_, system_reason(errno), "");
  return true;
}

bool TierFolder::take_lock() {
  const Wording kForeignAdvice = "remove it, or choose another " + Option::nvme_path;
  lock_fd_ =
      openat(folder_fd_, tier::kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (lock_fd_ < 0) {
    if (errno == ENOENT) return false;
    const bool no_file = errno == ELOOP || errno == EISDIR || errno == ENXIO;
    fail(folder_ + "/lock", system_reason(errno), no_file ? kForeignAdvice : advice_for(errno));
  }
  // A file of that name among files of a tier is the lock, whatever became of its text.
  const auto is_of_a_tier = [&] {
    return std::ranges::any_of(tier::list_files(folder_fd_, folder_), &tier::Entry::ours);
  };
  if (!is_lock_file(lock_fd_) && !is_of_a_tier())
    fail(folder_ + "/lock", "it is not a lock of Terrace's", kForeignAdvice);
  int result = flock(lock_fd_, LOCK_EX | LOCK_NB);
  // look_at_tier() has the lock for a moment, so a few attempts are made.
  constexpr int kAttempts = 20;
  for (int attempt = 0; attempt < kAttempts && result != 0 && (errno == EINTR || errno == EWOULDBLOCK);
       ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result = flock(lock_fd_, LOCK_EX | LOCK_NB);
  }
  if (result != 0) {
    if (errno != EWOULDBLOCK)
      fail(folder_ + "/lock", system_reason(errno), "choose a path on a local file system");
    if (is_held_by_this_process(lock_fd_)) {
      fail(folder_, "this process is using it already",
           Option::earlier_store + " first, or give each one a folder of its own (" + Option::tier_name + ")",
           ErrorCause::folder_in_use);
    }
    fail(folder_, holder_of(lock_fd_) + " is using it",
         "wait for it to end, or give every job a " + Option::nvme_path + " of its own",
         ErrorCause::folder_in_use);
  }
  // A folder that was removed has lost its lock file first.
  is_locked_ = lock_is_named();
  return is_locked_;
}

// The lock counts only if it is on the file that the next job will open.
bool TierFolder::lock_is_named() const {
  struct stat held, named;
  return fstat(lock_fd_, &held) == 0 &&
         fstatat(folder_fd_, tier::kLockName, &named, AT_SYMLINK_NOFOLLOW) == 0 && same_file(held, named);
}

void TierFolder::require_held() const {
  if (lock_is_named()) return;
  throw Error(ErrorKind::io, {"cannot go on in the tier folder", folder_,
                              "its lock was removed while a job held it: another job may be using it",
                              "keep other programs, such as cleaners of temporary files, away from it"});
}

void TierFolder::write_lock_text() {
  const std::string text =
      "pid " + std::to_string(owner_) + "\nhost " + host_name() + "\nstarted " + utc_time() + "\n";
  const bool written = ftruncate(lock_fd_, 0) == 0 &&
                       pwrite(lock_fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  // The lock holds without its text, and a full drive is reported by the tier files.
  if (!written) log_.warning("cannot write " + folder_ + "/lock: " + system_reason(errno).text);
}

TierFolder::Removed TierFolder::remove_files() {
  return remove_until(false);
}

TierFolder::Removed TierFolder::remove_manifests() {
  return remove_until(true);
}

TierFolder::Removed TierFolder::remove_until(bool manifests_only) {
  std::vector<tier::Entry> entries = tier::list_files(folder_fd_, folder_);
  std::ranges::sort(entries, {}, &tier::Entry::kind);
  Removed removed;
  bool names_may_return = false;  // a power cut may bring back the names of removed manifests
  const auto make_durable = [&] {
    if (std::exchange(names_may_return, false)) io::sync_folder(folder_, events_);
  };
  for (const tier::Entry& entry : entries) {
    const std::string path = folder_ + "/" + entry.name;
    if (manifests_only && entry.kind != tier::FileKind::manifest) break;
    if (!entry.ours) {
      if (entry.regular)
        log_.warning_once(path + " has the name of a tier file and is none: it is left alone");
      continue;
    }
    if (entry.kind != tier::FileKind::manifest) make_durable();
    if (unlinkat(folder_fd_, entry.name.c_str(), 0) != 0)
      fail(path, "it cannot be removed: " + system_reason(errno), "remove it by hand");
    if (events_ != nullptr) events_->removed(path);
    names_may_return |= entry.kind == tier::FileKind::manifest;
    ++removed.files;
    removed.bytes += entry.bytes;
  }
  make_durable();
  return removed;
}

std::span<const std::byte, TierFolder::kMarkBytes> TierFolder::mark() {
  struct alignas(kMarkBytes) Block {
    std::array<std::byte, kMarkBytes> bytes{};
  };
  static const Block block = [] {
    Block filled;
    std::ranges::copy(std::as_bytes(std::span(kMarkText)), filled.bytes.begin());
    return filled;
  }();
  return block.bytes;
}

std::string TierFolder::file_path(std::string_view name) const {
  TERRACE_ASSERT(tier::is_store_name(name), "\"" + std::string(name) + "\" is no name for a tier file");
  return folder_ + "/" + tier::blocks_file_name(name);
}

uint64_t TierFolder::bytes_at(const std::filesystem::path& path) {
  constexpr uint64_t kStatBlockBytes = 512;
  uint64_t bytes = 0;
  std::error_code failure;
  std::filesystem::directory_iterator entry(path / tier::kFolderName, failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    struct stat file;
    if (lstat(entry->path().c_str(), &file) == 0 && S_ISREG(file.st_mode))
      bytes += static_cast<uint64_t>(file.st_blocks) * kStatBlockBytes;
  }
  return bytes;
}

uint64_t TierFolder::free_bytes() const {
  return io::free_bytes_at(folder_);
}

void TierFolder::require_free(uint64_t bytes, std::string_view what) const {
  const uint64_t free = free_bytes();
  if (bytes <= free) return;
  throw Error(
      ErrorKind::capacity,
      {"there is no room for " + std::string(what) + " in", folder_,
       std::to_string(bytes) + " bytes (" + format_bytes(bytes) + ") are needed and " + std::to_string(free) +
           " (" + format_bytes(free) + ") are free",
       "free " + format_bytes(bytes - free) + " there, or set " + Option::nvme_path + " to a larger disk"});
}

}  // namespace terrace
