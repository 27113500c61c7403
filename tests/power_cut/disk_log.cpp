#include "power_cut/disk_log.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <stdexcept>

namespace terrace::power_cut {
namespace {

std::atomic<DiskLog*> active_log{nullptr};

std::string target_of(const std::string& link) {
  std::array<char, PATH_MAX> text;
  const long size = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), text.data(), text.size());
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : std::string();
}

}  // namespace

DiskLog::DiskLog(const std::filesystem::path& folder) : folder_(std::filesystem::canonical(folder).string()) {
  if (!std::filesystem::is_empty(folder_)) throw std::logic_error(folder_ + " is not empty");
  DiskLog* none = nullptr;
  if (!active_log.compare_exchange_strong(none, this)) throw std::logic_error("one log at a time");
}

DiskLog::~DiskLog() {
  stop();
}

std::vector<DiskEvent> DiskLog::stop() {
  DiskLog* self = this;
  active_log.compare_exchange_strong(self, nullptr);
  const std::lock_guard lock(mutex_);
  return events_;
}

DiskLog* DiskLog::active() {
  return active_log.load();
}

void DiskLog::mark(std::string text) {
  add({DiskOp::marked, std::move(text), {}});
}

std::string DiskLog::relative(const std::string& path) const {
  const std::string normal = std::filesystem::path(path).lexically_normal().string();
  if (!normal.starts_with(folder_) || normal.size() == folder_.size()) return normal == folder_ ? "." : "";
  if (normal[folder_.size()] != '/') return "";
  std::string rest = normal.substr(folder_.size() + 1);
  while (rest.ends_with('/')) rest.pop_back();
  return rest.empty() ? "." : rest;
}

std::string DiskLog::below(int folder_fd, const char* path) const {
  if (path[0] == '/') return relative(path);
  const std::string base = folder_fd == AT_FDCWD ? target_of("/proc/self/cwd")
                                                 : target_of("/proc/self/fd/" + std::to_string(folder_fd));
  return relative(base + "/" + path);
}

std::string DiskLog::below(int fd) const {
  return relative(target_of("/proc/self/fd/" + std::to_string(fd)));
}

void DiskLog::add(DiskEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

uint64_t DiskLog::begin(DiskOp op, std::string path, uint64_t offset, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  events_.push_back({op, std::move(path), {}, offset, data.size(), next_number_, {data.begin(), data.end()}});
  return next_number_++;
}

void DiskLog::end(DiskOp op, const std::string& path, uint64_t number, uint64_t bytes) {
  add({op, path, {}, 0, bytes, number, {}});
}

namespace {

// What every hook asks first.
DiskLog* log_of(int fd, std::string& path) {
  DiskLog* log = DiskLog::active();
  if (log == nullptr) return nullptr;
  path = log->below(fd);
  return path.empty() ? nullptr : log;
}

int opened(int folder_fd, const char* path, int flags, mode_t mode) {
  DiskLog* log = DiskLog::active();
  const std::string name = log != nullptr ? log->below(folder_fd, path) : std::string();
  struct stat status;
  const bool was_there =
      name.empty() || syscall(SYS_newfstatat, folder_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
  const auto fd = static_cast<int>(syscall(SYS_openat, folder_fd, path, flags, mode));
  if (fd < 0 || name.empty()) return fd;
  if (!was_there) log->add({DiskOp::file_made, name, {}});
  if (was_there && (flags & O_TRUNC) != 0) log->add({DiskOp::resized, name, {}});
  return fd;
}

// A write that the system has made of something else; its bytes are read back.
void log_copied(int fd, uint64_t offset, uint64_t bytes) {
  std::string path;
  DiskLog* log = log_of(fd, path);
  if (log == nullptr) return;
  std::vector<std::byte> data(bytes);
  const std::string own = "/proc/self/fd/" + std::to_string(fd);
  const auto source = static_cast<int>(syscall(SYS_openat, AT_FDCWD, own.c_str(), O_RDONLY | O_CLOEXEC, 0));
  const long size = syscall(SYS_pread64, source, data.data(), data.size(), offset);
  syscall(SYS_close, source);
  if (size != static_cast<long>(bytes)) throw std::logic_error("cannot read back what was copied to " + path);
  const uint64_t number = log->begin(DiskOp::write_begins, path, offset, data);
  log->end(DiskOp::write_ends, path, number, bytes);
}

long written(int fd, const void* data, size_t bytes, uint64_t offset,
             long (*transfer)(int, const void*, size_t, uint64_t)) {
  std::string path;
  DiskLog* log = log_of(fd, path);
  if (log == nullptr) return transfer(fd, data, bytes, offset);
  const uint64_t number =
      log->begin(DiskOp::write_begins, path, offset, {static_cast<const std::byte*>(data), bytes});
  const long result = transfer(fd, data, bytes, offset);
  const int error = errno;
  log->end(DiskOp::write_ends, path, number, result > 0 ? static_cast<uint64_t>(result) : 0);
  errno = error;
  return result;
}

int synced(int fd, long call) {
  std::string path;
  DiskLog* log = log_of(fd, path);
  if (log == nullptr) return static_cast<int>(syscall(call, fd));
  struct stat status;
  const bool folder = syscall(SYS_fstat, fd, &status) == 0 && S_ISDIR(status.st_mode);
  const uint64_t number = folder ? 0 : log->begin(DiskOp::sync_begins, path);
  const auto result = static_cast<int>(syscall(call, fd));
  if (result == 0) log->end(folder ? DiskOp::folder_synced : DiskOp::sync_ends, path, number);
  return result;
}

int renamed(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  DiskLog* log = DiskLog::active();
  const auto result = static_cast<int>(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
  if (result != 0 || log == nullptr) return result;
  const bool swap = (flags & RENAME_EXCHANGE) != 0;
  const std::string old_name = log->below(from_fd, from);
  const std::string new_name = log->below(to_fd, to);
  if (old_name.empty() && new_name.empty()) return result;
  if (old_name.empty() || new_name.empty()) throw std::logic_error("renamed into or out of the folder");
  log->add({swap ? DiskOp::exchanged : DiskOp::renamed, old_name, new_name});
  return result;
}

int removed(int folder_fd, const char* path, int flags) {
  DiskLog* log = DiskLog::active();
  const auto result = static_cast<int>(syscall(SYS_unlinkat, folder_fd, path, flags));
  if (result != 0 || log == nullptr) return result;
  const std::string name = log->below(folder_fd, path);
  if (!name.empty()) log->add({DiskOp::removed, name, {}});
  return result;
}

int resized(int fd, uint64_t bytes, int result) {
  std::string path;
  DiskLog* log = result == 0 ? log_of(fd, path) : nullptr;
  if (log != nullptr) log->add({DiskOp::resized, path, {}, 0, bytes});
  return result;
}

mode_t mode_of(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(arguments, mode_t) : 0;
}

int allocated(int fd, int mode, off_t offset, off_t bytes) {
  const auto result = static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
  if (result != 0) return result;
  if (mode != 0) throw std::logic_error("an fallocate that this log does not know");
  struct stat status;
  if (syscall(SYS_fstat, fd, &status) != 0) return result;
  return resized(fd, static_cast<uint64_t>(status.st_size), result);
}

int folder_made(int folder_fd, const char* path, mode_t mode) {
  const auto result = static_cast<int>(syscall(SYS_mkdirat, folder_fd, path, mode));
  DiskLog* log = DiskLog::active();
  if (result != 0 || log == nullptr) return result;
  const std::string name = log->below(folder_fd, path);
  if (!name.empty()) log->add({DiskOp::folder_made, name, {}});
  return result;
}

}  // namespace
}  // namespace terrace::power_cut

namespace cut = terrace::power_cut;

// The C library's names: the linker lets every caller, libraries included, find these first.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = cut::mode_of(flags, arguments);
  va_end(arguments);
  return cut::opened(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat(int folder_fd, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = cut::mode_of(flags, arguments);
  va_end(arguments);
  return cut::opened(folder_fd, path, flags, mode);
}
int openat64(int folder_fd, const char* path, int flags, ...) __attribute__((alias("openat")));

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return cut::written(fd, data, bytes, static_cast<uint64_t>(offset),
                      [](int file, const void* from, size_t count, uint64_t at) {
                        return syscall(SYS_pwrite64, file, from, count, at);
                      });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) __attribute__((alias("pwrite")));
ssize_t write(int fd, const void* data, size_t bytes) {
  const long position = syscall(SYS_lseek, fd, 0, SEEK_CUR);
  return cut::written(fd, data, bytes, position > 0 ? static_cast<uint64_t>(position) : 0,
                      [](int file, const void* from, size_t count, uint64_t) {
                        return syscall(SYS_write, file, from, count);
                      });
}
ssize_t copy_file_range(int from, off_t* from_offset, int to, off_t* to_offset, size_t bytes,
                        unsigned flags) {
  const off_t at = to_offset != nullptr ? *to_offset : syscall(SYS_lseek, to, 0, SEEK_CUR);
  const long result = syscall(SYS_copy_file_range, from, from_offset, to, to_offset, bytes, flags);
  if (result > 0) cut::log_copied(to, static_cast<uint64_t>(at), static_cast<uint64_t>(result));
  return result;
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const auto result = static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
  if (result == 0 && request == FICLONERANGE) {
    const auto* range = static_cast<const file_clone_range*>(argument);
    cut::log_copied(fd, range->dest_offset, range->src_length);
  }
  return result;
}

int ftruncate(int fd, off_t bytes) noexcept {
  return cut::resized(fd, static_cast<uint64_t>(bytes), static_cast<int>(syscall(SYS_ftruncate, fd, bytes)));
}
int ftruncate64(int fd, off_t bytes) noexcept __attribute__((alias("ftruncate")));
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return cut::allocated(fd, mode, offset, bytes);
}
int fallocate64(int fd, int mode, off_t offset, off_t bytes) __attribute__((alias("fallocate")));

int fsync(int fd) {
  return cut::synced(fd, SYS_fsync);
}
int fdatasync(int fd) {
  return cut::synced(fd, SYS_fdatasync);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return cut::folder_made(AT_FDCWD, path, mode);
}
int mkdirat(int folder_fd, const char* path, mode_t mode) noexcept {
  return cut::folder_made(folder_fd, path, mode);
}
int rename(const char* from, const char* to) noexcept {
  return cut::renamed(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  return cut::renamed(from_fd, from, to_fd, to, 0);
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  return cut::renamed(from_fd, from, to_fd, to, flags);
}
int unlink(const char* path) noexcept {
  return cut::removed(AT_FDCWD, path, 0);
}
int unlinkat(int folder_fd, const char* path, int flags) noexcept {
  return cut::removed(folder_fd, path, flags);
}
int rmdir(const char* path) noexcept {
  return cut::removed(AT_FDCWD, path, AT_REMOVEDIR);
}
int remove(const char* path) noexcept {
  const int result = cut::removed(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? cut::removed(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

}  // extern "C"
