#include <terrace/aio/drives/drive_token.h>

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

}  // namespace

fs::path default_token_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fs::path(runtime) / "terrace";
  return "/tmp/terrace-" + std::to_string(getuid());
}

DriveToken::DriveToken(std::span<const fs::path> paths, DriveTokenOptions options)
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

DriveToken::~DriveToken() {
  release();
  close_all();
}

bool DriveToken::open_drive(int folder_fd, const std::string& number) {
  std::string name = "drive-" + number + ".token";
  std::replace(name.begin(), name.end(), ':', '-');
  const int drive = openat(folder_fd, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  const std::string path = (options_.folder / name).string();
  if (drive < 0) {
    refusal_ = "cannot open " + path + ": " + system_reason(errno);
    return false;
  }
  if (name_.empty()) name_ = path;
  drives_.push_back(drive);
  return true;
}

void DriveToken::close_all() {
  for (const int drive : drives_) close(drive);
  drives_.clear();
  held_ = false;
}

bool DriveToken::acquire() {
  TERRACE_ASSERT(!held_, "the token is held already");
  const uint64_t deadline_ns = now_ns() + options_.patience_ns;
  for (size_t d = 0; d < drives_.size(); ++d) {
    if (lock_until(drives_[d], deadline_ns)) continue;
    for (size_t taken = 0; taken < d; ++taken) flock(drives_[taken], LOCK_UN);
    return false;
  }
  held_ = !drives_.empty();
  return held_;
}

void DriveToken::release() {
  if (!held_) return;
  for (const int drive : drives_) flock(drive, LOCK_UN);
  held_ = false;
}

}  // namespace terrace::io
