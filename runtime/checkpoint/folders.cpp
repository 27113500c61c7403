#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/epoch_inventory.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kFewestDigits = 8;
constexpr size_t kMostDigits = std::numeric_limits<uint64_t>::digits10 + 1;
constexpr std::string_view kPartialSuffix = ".partial";
constexpr std::string_view kReplacedSuffix = ".replaced";
constexpr uint64_t kMaxLatestBytes = 4096;

[[noreturn]] void fail(const std::string& what_failed, const fs::path& path, int error) {
  std::string advice;
  if (error == EACCES || error == EPERM || error == EROFS)
    advice = "choose a folder that this user may write to";
  if (error == ENOTDIR) advice = "a part of the path is a file: choose another folder";
  if (error == ENOSPC || error == EDQUOT) advice = "free some space, for example remove older checkpoints";
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorKind::capacity : ErrorKind::io,
              {what_failed, path.string(), system_reason(error), advice});
}

bool is_there(const fs::path& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0;
}

bool is_folder(const fs::path& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void sync_descriptor(int fd, const fs::path& path) {
  int result;
  do {
    result = fsync(fd);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail("cannot write to the device the folder", path, errno);
}

// Every missing folder of the path, each of them durable.
void make_folders(const fs::path& path) {
  if (path.empty() || is_folder(path)) return;
  const fs::path parent = path.parent_path();
  if (parent != path) make_folders(parent);
  if (path.filename().empty()) return;  // "a/b/" was made as "a/b"
  if (mkdir(path.c_str(), 0700) != 0) {
    const int error = errno;
    if (error == EEXIST && is_folder(path)) return;
    fail("cannot create the checkpoint folder", path, error == EEXIST ? ENOTDIR : error);
  }
  sync_folder(parent.empty() ? "." : parent);
}

// The names of a folder that `wanted` takes, sorted.
template <typename Wanted>
std::vector<std::string> names_in(const fs::path& folder, Wanted wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (wanted(name)) names.push_back(std::move(name));
  }
  if (error) fail("cannot list the checkpoint folder", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// ".step-00000020.partial" -> "step-00000020"; empty for any other name.
std::string step_of_aside(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() < 1 + suffix.size()) return "";
  const std::string_view step = name.substr(1, name.size() - 1 - suffix.size());
  return is_step_name(step) ? std::string(step) : "";
}

uint64_t bytes_below(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code ignored;  // it is only told
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    std::error_code none;
    const uint64_t size = entry.file_size(none);
    if (!none) bytes += size;
  }
  return bytes;
}

std::string checkpoints_in(const fs::path& folder) {
  constexpr size_t kNamed = 8;
  const std::vector<std::string> names = names_in(folder, [&](const std::string& name) {
    return is_step_name(name) && is_there(folder / name / kManifestName);
  });
  if (names.empty()) {
    return is_tier_path(folder)
               ? "it is an nvme path of training: --resume nvme with --save DIR goes on from "
                 "its epoch and leaves a checkpoint in DIR"
               : "no checkpoint is there";
  }
  std::string text = "name one of those that are there: ";
  for (size_t i = names.size() > kNamed ? names.size() - kNamed : 0; i < names.size(); ++i)
    text += (text.ends_with(' ') ? "" : ", ") + names[i];
  return text;
}

[[noreturn]] void no_checkpoint(ErrorKind kind, const fs::path& path, const std::string& reason,
                                const std::string& advice) {
  throw Error(kind, {"cannot find a checkpoint in", path.string(), reason, advice});
}

// A step's folder: under its own name or, when a job died between two renames, under the name it had
// meanwhile.
fs::path step_folder(const fs::path& path) {
  if (is_there(path / kManifestName)) return path;
  const fs::path named = path.filename().empty() ? path.parent_path() : path;
  const fs::path replaced =
      named.parent_path() / ("." + named.filename().string() + std::string(kReplacedSuffix));
  const bool was_moved =
      is_step_name(named.filename().string()) && !is_there(named) && is_there(replaced / kManifestName);
  return was_moved ? replaced : fs::path();
}

}  // namespace

std::string step_name(uint64_t step) {
  return fmt::format("{}{:0{}}", kStepPrefix, step, kFewestDigits);
}

bool is_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return false;
  name.remove_prefix(kStepPrefix.size());
  return name.size() >= kFewestDigits && name.size() <= kMostDigits &&
         name.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<uint64_t> step_of(std::string_view name) {
  if (!is_step_name(name)) return std::nullopt;
  const std::string_view digits = name.substr(name.find('-') + 1);
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return step;
}

fs::path find_checkpoint(const fs::path& path) {
  if (const fs::path found = step_folder(path); !found.empty()) return found;
  struct stat status;
  if (stat(path.c_str(), &status) != 0)
    no_checkpoint(ErrorKind::io, path, system_reason(errno), "check the path");
  if (!S_ISDIR(status.st_mode))
    no_checkpoint(ErrorKind::io, path, "it is not a folder", "name the folder of the checkpoints");
  const fs::path latest = path / kLatestName;
  if (!is_there(latest)) {
    no_checkpoint(ErrorKind::io, path,
                  fmt::format("it has neither \"{}\" nor \"{}\"", kLatestName, kManifestName),
                  checkpoints_in(path));
  }
  const std::vector<std::byte> bytes = io::read_whole_file(latest, kMaxLatestBytes);
  std::string name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (name.ends_with('\n')) name.pop_back();
  if (!is_step_name(name))
    no_checkpoint(ErrorKind::corrupt, latest, "it does not hold the name of a checkpoint",
                  checkpoints_in(path));
  const fs::path found = step_folder(path / name);
  if (!found.empty()) return found;
  no_checkpoint(ErrorKind::corrupt, latest,
                is_there(path / name) ? fmt::format("{} lacks its {}", name, kManifestName)
                                      : fmt::format("it names {}, which is not there", name),
                checkpoints_in(path));
}

SaveFolder::SaveFolder(fs::path folder, Log& log) : path_(std::move(folder)), log_(log) {
  make_folders(path_);
  open_and_lock();
  try {
    clean();
  } catch (...) {
    close(fd_);
    throw;
  }
}

SaveFolder::~SaveFolder() {
  close(fd_);
}

// The lock is on the folder itself, so that it leaves nothing behind.
void SaveFolder::open_and_lock() {
  fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) fail("cannot open the checkpoint folder", path_, errno);
  int result;
  do {
    result = flock(fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  if (error == EWOULDBLOCK) {
    close(fd_);
    throw Error(ErrorKind::io,
                {"cannot save into the checkpoint folder", path_.string(), "another job is saving there",
                 "give every job a checkpoint folder of its own"});
  }
  log_.warning_once(fmt::format("{} cannot be locked ({}): let no other job save there", path_.string(),
                                system_reason(error)));
}

void SaveFolder::clean() {
  const auto is_replaced = [](const std::string& name) {
    return !step_of_aside(name, kReplacedSuffix).empty();
  };
  const auto is_partial = [](const std::string& name) {
    return !step_of_aside(name, kPartialSuffix).empty();
  };
  for (const std::string& name : names_in(path_, is_replaced)) {
    const std::string step = step_of_aside(name, kReplacedSuffix);
    if (!is_there(path_ / step)) {
      rename_path(path_ / name, path_ / step);
      sync();
      log_.warning(
          fmt::format("{} in {} has its name back: a job died while replacing it", step, path_.string()));
    } else {
      log_.info(fmt::format("removing {} from {}: a newer {} took its place", name, path_.string(), step));
      const RemovedAtEnd removed(path_ / name, log_);
    }
  }
  for (const std::string& name : names_in(path_, is_partial)) {
    log_.info(fmt::format("removing {} ({}) from {}: a job died while saving it", name,
                          format_bytes(bytes_below(path_ / name)), path_.string()));
    const RemovedAtEnd removed(path_ / name, log_);
  }
}

void SaveFolder::sync() const {
  sync_descriptor(fd_, path_);
}

RemovedAtEnd::~RemovedAtEnd() {
  std::error_code error;
  fs::remove_all(path_, error);
  if (error)
    log_.warning(fmt::format("cannot remove {}: {}; remove it by hand", path_.string(), error.message()));
}

void make_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) != 0) fail("cannot create the folder", path, errno);
}

void sync_folder(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("cannot open the folder", path, errno);
  try {
    sync_descriptor(fd, path);
  } catch (...) {
    close(fd);
    throw;
  }
  close(fd);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0)
    fail(fmt::format("cannot rename to {} the folder", to.filename().string()), from, errno);
}

bool exchange_paths(const fs::path& one, const fs::path& other) {
  if (renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail(fmt::format("cannot replace with {} the folder", one.filename().string()), other, errno);
}

}  // namespace terrace::checkpoint
