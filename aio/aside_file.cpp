#include <terrace/aio/aside_file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include <terrace/aio/folder.h>

namespace terrace::io {

AsideFile::AsideFile(std::filesystem::path path, AsideOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      aside_(path_.string() + options_.suffix),
      file_(open()) {}

AsideFile::~AsideFile() {
  if (is_published_ || unlink(aside_.c_str()) != 0) return;
  if (options_.events != nullptr) options_.events->removed(aside_);
}

File AsideFile::open() const {
  struct stat earlier {};
  const bool is_there = options_.for_the_user && stat(path_.c_str(), &earlier) == 0;
  if (is_there && !S_ISREG(earlier.st_mode)) fail(path_, S_ISDIR(earlier.st_mode) ? EISDIR : EINVAL);
  remove_what_is_left();
  std::optional<File> file;
  try {
    file = File::open(aside_, {.access = FileAccess::write,
                               .create = true,
                               .mode = options_.for_the_user ? 0666u : 0600u,
                               .events = options_.events});
  } catch (const Error& error) {
    fail(error);
  }
  if (is_there && fchmod(file->fd(), earlier.st_mode & 0777) != 0) {
    const int error = errno;
    unlink(aside_.c_str());
    fail(aside_, error);
  }
  return *std::move(file);
}

void AsideFile::remove_what_is_left() const {
  if (unlink(aside_.c_str()) == 0) {
    if (options_.events != nullptr) options_.events->removed(aside_);
  } else if (errno != ENOENT) {
    fail(aside_, errno);
  }
}

void AsideFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  uint64_t at = offset;
  is_synced_ = false;
  for (std::span<const std::byte> rest = bytes; !rest.empty();) {
    const ssize_t written = pwrite(file_.fd(), rest.data(), rest.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(aside_, written < 0 ? errno : EIO);
    at += static_cast<uint64_t>(written);
    rest = rest.subspan(static_cast<size_t>(written));
  }
  if (options_.events != nullptr) options_.events->written(aside_, offset, bytes);
}

void AsideFile::publish_undurably() {
  if (rename(aside_.c_str(), path_.c_str()) != 0) fail(path_, errno);
  is_published_ = true;
  if (options_.events != nullptr) options_.events->renamed(aside_, path_);
}

void AsideFile::sync() {
  try {
    file_.sync();
  } catch (const Error& error) {
    fail(error);
  }
  is_synced_ = true;
}

void AsideFile::publish() {
  if (!is_synced_) sync();
  publish_undurably();
  const std::filesystem::path folder = path_.parent_path();
  sync_folder(folder.empty() ? "." : folder, options_.events);
}

void AsideFile::fail(const std::filesystem::path& path, int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  throw Error(is_full || error == EFBIG ? ErrorKind::capacity : ErrorKind::io,
              {"cannot write " + options_.what, path.string(), system_reason(error),
               is_full ? "free some space, or name a place on another disk" : options_.advice});
}

void AsideFile::fail(const Error& error) const {
  ErrorParts parts = error.parts();
  parts.what_failed = "cannot write " + options_.what;
  if (!options_.advice.empty()) parts.advice = options_.advice;
  throw Error(error.kind(), std::move(parts));
}

}  // namespace terrace::io
