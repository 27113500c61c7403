// Files that are read and written whole: manifests, configuration, statistics. Declared in file.h.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <terrace/aio/aside_file.h>
#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/units.h>

namespace terrace::io {
namespace {

[[noreturn]] void fail(const char* what_failed, const std::filesystem::path& path, int error) {
  throw Error(ErrorKind::io, {what_failed, path.string(), system_reason(error), "check the path"});
}

// Into bytes or characters.
template <typename Content>
Content read_whole(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::open(path, {.access = FileAccess::read, .no_follow = false});
  const uint64_t size_bytes = file.size_bytes();
  if (size_bytes > max_bytes) {
    throw Error(ErrorKind::io, {"cannot read the file", path.string(),
                                "it has " + format_bytes(size_bytes) + ", more than the " +
                                    format_bytes(max_bytes) + " expected at most",
                                "it is probably not the file that was meant"});
  }
  Content bytes;
  bytes.resize(size_bytes);
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t moved = read(file.fd(), bytes.data() + filled, bytes.size() - filled);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) fail("cannot read the file", path, errno);
    if (moved == 0) {
      throw Error(ErrorKind::io, {"cannot read the file", path.string(), "it became shorter meanwhile",
                                  "see what else writes to it"});
    }
    filled += static_cast<size_t>(moved);
  }
  return bytes;
}

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
  AsideFile file(path,
                 {.advice = "see that its folder is there and that you may write to it", .events = events});
  file.write(0, bytes);
  file.publish();
}

std::vector<std::byte> read_whole_file(const std::filesystem::path& path, uint64_t max_bytes) {
  return read_whole<std::vector<std::byte>>(path, max_bytes);
}

std::string read_whole_text(const std::filesystem::path& path, uint64_t max_bytes) {
  return read_whole<std::string>(path, max_bytes);
}

}  // namespace terrace::io
