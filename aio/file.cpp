#include <terrace/aio/file.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace::io {
namespace {

constexpr uint64_t kFallbackAlignmentBytes = 4096;

int access_flags(FileAccess access) {
  switch (access) {
    case FileAccess::read:
      return O_RDONLY;
    case FileAccess::write:
      return O_WRONLY;
    case FileAccess::read_write:
      return O_RDWR;
  }
  return O_RDONLY;
}

std::string open_advice(int error, const FileOptions& options) {
  if (error == EEXIST) return "another job may be using it; remove it if it is left over";
  if (error == ELOOP && options.no_follow) return "it is a symbolic link, which is not followed here";
  if (error == ENOENT && options.create) return "create its folder first";
  if (error == EACCES || error == EPERM) return "check its permissions and those of its folder";
  return "check the path";
}

// Recent kernels accept O_DIRECT there and go through memory all the same.
bool lives_in_memory(int fd) {
  struct statfs status;
  if (fstatfs(fd, &status) != 0) return false;
  return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

// What direct transfers must be aligned to, or 0 when the file system says it has none.
uint64_t direct_alignment_bytes(int fd) {
  struct statx status;
  const unsigned wanted = STATX_DIOALIGN | STATX_BASIC_STATS;
  if (statx(fd, "", AT_EMPTY_PATH, wanted, &status) != 0) return kFallbackAlignmentBytes;
  if ((status.stx_mask & STATX_DIOALIGN) == 0)
    return std::max<uint64_t>(status.stx_blksize, kFallbackAlignmentBytes);
  return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
}

}  // namespace

File File::without_file(const std::filesystem::path& path) {
  const int fd = ::open("/dev/null", O_PATH | O_CLOEXEC);
  if (fd < 0) throw Error(ErrorKind::io, {"cannot open the file", "/dev/null", system_reason(errno), ""});
  return File(fd, path, nullptr);
}

File File::open(const std::filesystem::path& path, const FileOptions& options) {
  // O_NONBLOCK so that a pipe in the file's place is an error and not a wait; go_direct() or the F_SETFL
  // below takes it away again, because io_uring would answer EAGAIN on such a descriptor.
  int flags = access_flags(options.access) | O_CLOEXEC | O_NONBLOCK;
  if (options.create) flags |= O_CREAT | O_EXCL;
  if (options.no_follow) flags |= O_NOFOLLOW;
  int fd;
  do {
    fd = ::open(path.c_str(), flags, options.mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    const int error = errno;
    throw Error(ErrorKind::io, {options.create ? "cannot create the file" : "cannot open the file",
                                path.string(), system_reason(error), open_advice(error, options)});
  }
  File file(fd, path, options.events);
  if (options.create && options.events != nullptr) options.events->created(path);
  struct stat status;
  if (fstat(fd, &status) != 0) file.fail("cannot examine the file", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::io,
                {"cannot use the file", path.string(), "it is not a regular file", "check the path"});
  }
  if (fcntl(fd, F_SETFL, 0) != 0) file.fail("cannot set the flags of the file", errno);
  if (options.direct) file.go_direct();
  return file;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      events_(other.events_),
      direct_(other.direct_),
      direct_refusal_(std::move(other.direct_refusal_)),
      alignment_bytes_(other.alignment_bytes_) {}

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  path_ = std::move(other.path_);
  events_ = other.events_;
  direct_ = other.direct_;
  direct_refusal_ = std::move(other.direct_refusal_);
  alignment_bytes_ = other.alignment_bytes_;
  return *this;
}

// close() has nothing to report that sync() has not reported before it.
File::~File() {
  if (fd_ >= 0) close(fd_);
}

void File::fail(const std::string& what_failed, int error, const std::string& advice) const {
  throw Error(ErrorKind::io, {what_failed, path_.string(), system_reason(error), advice});
}

// Set after opening and not by open(2), which would leave a created file behind when it refuses.
void File::go_direct() {
  if (lives_in_memory(fd_)) {
    direct_refusal_ = "it lies in a file system that is in memory";
    return;
  }
  const uint64_t alignment_bytes = direct_alignment_bytes(fd_);
  if (alignment_bytes == 0) {
    direct_refusal_ = "its file system has no direct I/O";
    return;
  }
  if (fcntl(fd_, F_SETFL, O_DIRECT) != 0) {
    direct_refusal_ = "O_DIRECT: " + system_reason(errno);
    return;
  }
  direct_ = true;
  alignment_bytes_ = alignment_bytes;
}

uint64_t File::size_bytes() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) fail("cannot examine the file", errno);
  return static_cast<uint64_t>(status.st_size);
}

void File::resize(uint64_t bytes) {
  int result;
  do {
    result = ftruncate(fd_, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail("cannot resize to " + format_bytes(bytes) + " the file", errno);
  if (events_ != nullptr) events_->resized(path_, bytes);
}

bool File::preallocate(uint64_t bytes) {
  struct stat status;
  if (fstat(fd_, &status) != 0) fail("cannot examine the file", errno);
  const auto old_bytes = static_cast<uint64_t>(status.st_size);
  const uint64_t taken_bytes = static_cast<uint64_t>(status.st_blocks) * 512;
  const uint64_t missing_bytes = bytes > taken_bytes ? bytes - taken_bytes : 0;
  const auto refuse = [&](int error) {
    throw Error(
        ErrorKind::capacity,
        {"cannot reserve " + format_bytes(bytes) + " for the file", path_.string(), system_reason(error),
         "its file system has " + format_bytes(free_bytes_at(path_)) + " free and " +
             format_bytes(missing_bytes) + " more are needed; free some, or name another path"});
  };
  // Asked first, so that a job that cannot succeed does not fill the disk for others while it finds out.
  if (missing_bytes > free_bytes_at(path_)) refuse(ENOSPC);
  if (bytes == 0) return true;
  int result;
  do {
    result = fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    if (events_ != nullptr && bytes > old_bytes) events_->resized(path_, bytes);
    return true;
  }
  const int error = errno;
  if (error == EOPNOTSUPP) {
    if (bytes > old_bytes) resize(bytes);
    return false;
  }
  resize(old_bytes);  // gives back what was reserved before it failed
  if (error == ENOSPC || error == EDQUOT) refuse(error);
  fail("cannot reserve " + format_bytes(bytes) + " for the file", error);
}

void File::sync() {
  if (events_ != nullptr) events_->sync_begins(path_);
  int result;
  do {
    result = fdatasync(fd_);
  } while (result != 0 && errno == EINTR);
  // Not retried: after a failed fsync the kernel may have dropped the data and would report success.
  if (result != 0) fail("cannot sync the file", errno, "its recent writes may be lost");
  if (events_ != nullptr) events_->synced(path_);
}

void File::rename(const std::filesystem::path& to) {
  int result = renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  // Not every file system knows the flag.
  if (result != 0 && errno == EINVAL) {
    errno = EEXIST;
    if (access(to.c_str(), F_OK) != 0) result = ::rename(path_.c_str(), to.c_str());
  }
  if (result != 0) fail("cannot give the name " + to.string() + " to the file", errno);
  if (events_ != nullptr) events_->renamed(path_, to);
  path_ = to;
}

void File::require_named() const {
  struct stat mine, named;
  if (fstat(fd_, &mine) != 0) fail("cannot look at the file", errno);
  const bool is_there = lstat(path_.c_str(), &named) == 0;
  if (is_there && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) return;
  throw Error(ErrorKind::io,
              {"cannot go on with the file", path_.string(),
               is_there ? "another file was put in its place while a job used it"
                        : "it was removed while a job used it: " + system_reason(errno),
               "keep other programs, such as cleaners of temporary files, away from its folder"});
}

bool File::try_lock() {
  int result;
  do {
    result = flock(fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  fail("cannot lock the file", errno);
}

void read_exactly(const File& file, uint64_t offset, std::span<std::byte> bytes, std::string_view advice) {
  while (!bytes.empty()) {
    const ssize_t moved = pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      throw Error(ErrorKind::io,
                  {"cannot read " + std::to_string(bytes.size()) + " bytes at offset " +
                       std::to_string(offset) + " of",
                   file.path().string(), moved < 0 ? system_reason(errno) : "the file became shorter",
                   std::string(advice)});
    }
    offset += static_cast<uint64_t>(moved);
    bytes = bytes.subspan(static_cast<size_t>(moved));
  }
}

uint64_t free_bytes_at(const std::filesystem::path& path) {
  struct statvfs status;
  int result;
  do {
    result = statvfs(path.c_str(), &status);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw Error(ErrorKind::io,
                {"cannot examine the file system of", path.string(), system_reason(errno), "check the path"});
  }
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

Error describe_failure(const Request& request, const Completion& completion,
                       const std::filesystem::path& path) {
  TERRACE_ASSERT(completion.error != 0, "a request that succeeded has no failure to describe");
  const bool is_read = request.kind == OpKind::read;
  const std::string what = std::string(is_read ? "cannot read " : "cannot write ") +
                           std::to_string(request.bytes) + " bytes at offset " +
                           std::to_string(request.offset) + (is_read ? " of" : " to");
  const std::string moved = ", after " + std::to_string(completion.bytes) + " bytes";
  if (completion.error == kEndOfFile) {
    return Error(ErrorKind::io, {what, path.string(), "the file ends" + moved,
                                 "it was truncated or never fully written: go on from the last checkpoint"});
  }
  if (is_engine_stop(completion.error)) {
    return Error(ErrorKind::io, {what, path.string(),
                                 "the system no longer serves the I/O engine (" +
                                     system_reason(completion.error - kEngineStopped) + ")" + moved,
                                 "go on with another engine: \"threads\" works wherever files do"});
  }
  std::string advice = "see the kernel's log (dmesg)";
  if (completion.error == ENOSPC || completion.error == EDQUOT) advice = "free space on its file system";
  if (completion.error == EIO) advice = "the drive failed: see the kernel's log (dmesg)";
  if (completion.error == EINVAL) advice = "offset, size and memory must suit the alignment of a direct file";
  return Error(ErrorKind::io, {what, path.string(), system_reason(completion.error) + moved, advice});
}

}  // namespace terrace::io
