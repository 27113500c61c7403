#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/monitor/internal/append_file.h>

namespace terrace {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw Error(ErrorKind::io, {what, path.string(), system_reason(error),
                              "set another output_path for the monitor, or enabled to false"});
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot open a monitor's file", path_, errno);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot write a monitor's file", path_, written < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace terrace
