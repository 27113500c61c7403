#include <terrace/aio/drives/device_token.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>

#include <terrace/aio/drives/block_device.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

// A waiting process looks again after this time: flock() alone would wait for a stopped process for ever.
constexpr uint64_t kFirstPauseNs = 50'000;
constexpr uint64_t kLongestPauseNs = 500'000;

uint64_t now_ns() {
  return SteadyClock().now_ns();
}

bool try_lock(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

bool lock_until(int fd, uint64_t deadline_ns) {
  for (uint64_t pause = kFirstPauseNs; !try_lock(fd); pause = std::min(2 * pause, kLongestPauseNs)) {
    if (now_ns() >= deadline_ns) return false;
    const timespec wait{0, static_cast<long>(pause)};
    nanosleep(&wait, nullptr);
  }
  return true;
}

int open_lock_file(int folder_fd, const std::string& name) {
  return openat(folder_fd, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

}  // namespace

fs::path default_token_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fs::path(runtime) / "terrace";
  return "/tmp/terrace-" + std::to_string(getuid());
}

DeviceToken::DeviceToken(std::span<const fs::path> paths, DeviceTokenOptions options)
    : options_(std::move(options)) {
  if (options_.folder.empty()) options_.folder = default_token_folder();
  std::set<std::string> numbers;
  try {
    for (const fs::path& path : paths) numbers.insert(find_block_device(path).number);
  } catch (const Error& error) {
    refusal_ = error.what();
    return;
  }
  if (mkdir(options_.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    refusal_ = "cannot create " + options_.folder.string() + ": " + system_reason(errno);
    return;
  }
  const int folder_fd = open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status {};
  if (folder_fd < 0 || fstat(folder_fd, &status) != 0) {
    refusal_ = "cannot use " + options_.folder.string() + ": " + system_reason(errno);
  } else if (status.st_uid != getuid() || (status.st_mode & 0022) != 0) {
    refusal_ = options_.folder.string() + " is not a folder of this user's alone";
  } else {
    for (const std::string& number : numbers) {
      if (!open_drive(folder_fd, number)) break;
    }
  }
  if (folder_fd >= 0) close(folder_fd);
  if (!usable()) close_all();
}

DeviceToken::~DeviceToken() {
  release();
  close_all();
}

bool DeviceToken::open_drive(int folder_fd, const std::string& number) {
  std::string stem = "drive-" + number;
  std::replace(stem.begin(), stem.end(), ':', '-');
  Drive drive{open_lock_file(folder_fd, stem + ".gate"), -1};
  if (drive.gate >= 0) drive.token = open_lock_file(folder_fd, stem + ".token");
  if (drive.token < 0) {
    refusal_ =
        "cannot open the lock files of " + (options_.folder / stem).string() + ": " + system_reason(errno);
    if (drive.gate >= 0) close(drive.gate);
    return false;
  }
  if (name_.empty()) name_ = (options_.folder / (stem + ".token")).string();
  drives_.push_back(drive);
  return true;
}

void DeviceToken::close_all() {
  for (const Drive& drive : drives_) {
    close(drive.token);
    close(drive.gate);
  }
  drives_.clear();
  held_ = false;
}

bool DeviceToken::take(const Drive& drive, uint64_t deadline_ns) {
  if (!lock_until(drive.gate, deadline_ns)) return false;
  const bool taken = lock_until(drive.token, deadline_ns);
  flock(drive.gate, LOCK_UN);
  return taken;
}

bool DeviceToken::acquire_until(uint64_t deadline_ns) {
  TERRACE_ASSERT(!held_, "the token is held already");
  for (size_t d = 0; d < drives_.size(); ++d) {
    if (take(drives_[d], deadline_ns)) continue;
    for (size_t taken = 0; taken < d; ++taken) flock(drives_[taken].token, LOCK_UN);
    return false;
  }
  held_ = !drives_.empty();
  return held_;
}

bool DeviceToken::try_acquire() {
  return acquire_until(0);
}

bool DeviceToken::acquire() {
  return acquire_until(now_ns() + options_.patience_ns);
}

void DeviceToken::release() {
  if (!held_) return;
  for (const Drive& drive : drives_) flock(drive.token, LOCK_UN);
  held_ = false;
}

bool DeviceToken::wanted() const {
  return held_ && std::any_of(drives_.begin(), drives_.end(), [](const Drive& drive) {
           if (!try_lock(drive.gate)) return true;
           flock(drive.gate, LOCK_UN);
           return false;
         });
}

}  // namespace terrace::io
