// Files that are read and written whole: manifests, configuration, statistics. Declared in file.h.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/units.h>

namespace terrace::io {
namespace {

[[noreturn]] void fail(const char* what_failed, const std::filesystem::path& path, int error) {
  throw Error(ErrorKind::io, {what_failed, path.string(), system_reason(error), ""});
}

void write_all(const File& file, std::span<const std::byte> bytes, FileEvents* events) {
  const std::span<const std::byte> all = bytes;
  while (!bytes.empty()) {
    const ssize_t written = write(file.fd(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot write the file", file.path(), written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  if (events != nullptr) events->written(file.path(), 0, all);
}

// Removes the file unless it is kept.
class Aside {
 public:
  Aside(std::filesystem::path path, FileEvents* events) : path_(std::move(path)), events_(events) {}
  ~Aside() {
    if (!path_.empty() && unlink(path_.c_str()) == 0 && events_ != nullptr) events_->removed(path_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
  FileEvents* events_;
};

}  // namespace

void sync_folder(const std::filesystem::path& folder, FileEvents* events) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_folder("cannot open the folder", folder, errno);
  try {
    sync_descriptor(fd, folder);
  } catch (...) {
    close(fd);
    throw;
  }
  close(fd);
  if (events != nullptr) events->folder_synced(folder);
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes,
                           FileEvents* events) {
  const std::filesystem::path aside_path(path.string() + ".new");
  if (unlink(aside_path.c_str()) == 0) {
    if (events != nullptr) events->removed(aside_path);
  } else if (errno != ENOENT) {
    fail("cannot remove the file", aside_path, errno);
  }
  {
    File file = File::open(aside_path, {.access = FileAccess::write, .create = true, .events = events});
    Aside aside(aside_path, events);
    write_all(file, bytes, events);
    file.sync();
    if (rename(aside_path.c_str(), path.c_str()) != 0) fail("cannot replace the file", path, errno);
    if (events != nullptr) events->renamed(aside_path, path);
    aside.keep();
  }
  const std::filesystem::path folder = path.parent_path();
  sync_folder(folder.empty() ? "." : folder, events);
}

std::vector<std::byte> read_whole_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::open(path, {.access = FileAccess::read, .no_follow = false});
  const uint64_t size_bytes = file.size_bytes();
  if (size_bytes > max_bytes) {
    throw Error(ErrorKind::io, {"cannot read the file", path.string(),
                                "it has " + format_bytes(size_bytes) + ", more than the " +
                                    format_bytes(max_bytes) + " expected at most",
                                "it is probably not the file that was meant"});
  }
  std::vector<std::byte> bytes(size_bytes);
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t moved = read(file.fd(), bytes.data() + filled, bytes.size() - filled);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) fail("cannot read the file", path, errno);
    if (moved == 0) {
      throw Error(ErrorKind::io, {"cannot read the file", path.string(), "it became shorter meanwhile", ""});
    }
    filled += static_cast<size_t>(moved);
  }
  return bytes;
}

}  // namespace terrace::io
