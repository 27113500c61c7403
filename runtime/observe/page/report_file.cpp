#include <terrace/runtime/observe/page/report_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/page/report_page.h>

namespace terrace {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw Error(ErrorKind::io, {"cannot write the report", path.string(), system_reason(error),
                              "name a file in a folder that can be written to"});
}

// 0, or the number of the error.
int write_all(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t moved = ::write(fd, text.data() + written, text.size() - written);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    written += static_cast<size_t>(moved);
  }
  return 0;
}

// Beside it first, then under its name. Nothing is synced: a page is worth no wait for the disk.
void replace_file(const std::filesystem::path& path, const std::string& text) {
  struct stat status {};
  const bool is_there = stat(path.c_str(), &status) == 0;
  if (is_there && !S_ISREG(status.st_mode)) fail(path, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  const std::string aside = path.string() + ".new";
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) fail(path, errno);
  // Who may read the one before may read this one.
  int error = is_there && fchmod(fd, status.st_mode & 0777) != 0 ? errno : 0;
  if (error == 0) error = write_all(fd, text);
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(aside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(aside.c_str());
  fail(path, error);
}

}  // namespace

void ReportFile::write(const RunRecord& record, int64_t written_at) {
  const uint64_t begin_ns = clock_.now_ns();
  // What fails is not tried again at once.
  due_ns_ = begin_ns + kLeastPauseNs;
  replace_file(path_, report_page(record, written_at));
  const uint64_t end_ns = clock_.now_ns();
  due_ns_ = end_ns + std::max(kLeastPauseNs, (kShare - 1) * (end_ns - begin_ns));
}

}  // namespace terrace
