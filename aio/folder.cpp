#include <terrace/aio/folder.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_look(const fs::path& path) {
  throw Error(ErrorKind::io, {"cannot see whether there is a", path.string(), system_reason(errno),
                              "see that you may look into its folder"});
}

}  // namespace

RemovedAtEnd::~RemovedAtEnd() {
  std::error_code error;
  fs::remove_all(path_, error);
  if (error)
    log_.warning(fmt::format("cannot remove {}: {}; remove it by hand", path_.string(), error.message()));
}

bool is_there(const fs::path& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) == 0) return true;
  if (is_absence(errno)) return false;
  cannot_look(path);
}

bool is_folder(const fs::path& path) {
  struct stat status;
  if (stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
  if (is_absence(errno)) return false;
  cannot_look(path);
}

std::vector<std::string> names_in(const fs::path& folder, FunctionRef<bool(const std::string& name)> wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (wanted(name)) names.push_back(std::move(name));
  }
  if (error) fail_folder("cannot list the folder", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

void fail_folder(const std::string& what_failed, const fs::path& path, int error) {
  std::string advice;
  if (error == EACCES || error == EPERM || error == EROFS)
    advice = "choose a folder that this user may write to";
  if (error == ENOTDIR) advice = "a part of the path is a file: choose another folder";
  if (error == ENOSPC || error == EDQUOT) advice = "free some space";
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorKind::capacity : ErrorKind::io,
              {what_failed, path.string(), system_reason(error), advice});
}

void make_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) != 0) fail_folder("cannot create the folder", path, errno);
}

void make_folders(const fs::path& path) {
  if (path.empty() || is_folder(path)) return;
  const fs::path parent = path.parent_path();
  if (parent != path) make_folders(parent);
  if (path.filename().empty()) return;  // "a/b/" was made as "a/b"
  if (mkdir(path.c_str(), 0700) != 0) {
    const int error = errno;
    if (error == EEXIST && is_folder(path)) return;
    fail_folder("cannot create the folder", path, error == EEXIST ? ENOTDIR : error);
  }
  sync_folder(parent.empty() ? "." : parent);
}

void sync_descriptor(int fd, const fs::path& path) {
  int result;
  do {
    result = fsync(fd);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_folder("cannot sync the folder", path, errno);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0)
    fail_folder(fmt::format("cannot rename to {} the folder", to.filename().string()), from, errno);
}

bool exchange_paths(const fs::path& one, const fs::path& other) {
  if (renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail_folder(fmt::format("cannot replace with {} the folder", one.filename().string()), other, errno);
}

}  // namespace terrace::io
