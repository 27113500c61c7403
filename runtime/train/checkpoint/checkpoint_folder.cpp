#include <terrace/runtime/train/checkpoint/checkpoint_folder.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/train/checkpoint/internal/folders.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

using namespace checkpoint;

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

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, Log& log) : path_(std::move(folder)), log_(log) {
  io::make_folders(path_);
  open_and_lock();
  try {
    finish_latest();
    clean();
  } catch (...) {
    close(fd_);
    throw;
  }
}

CheckpointFolder::~CheckpointFolder() {
  close(fd_);
}

// The lock is on the folder itself, so that it leaves nothing behind.
void CheckpointFolder::open_and_lock() {
  fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) io::fail_folder("cannot open the checkpoint folder", path_, errno);
  int result;
  do {
    result = flock(fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  if (error == EWOULDBLOCK) {
    close(fd_);
    throw Error(ErrorKind::io, {"cannot save into the checkpoint folder", path_.string(),
                                "a job that runs saves its checkpoints there",
                                "give every job a checkpoint folder of its own"});
  }
  log_.warning_once(fmt::format("{} cannot be locked ({}): let no other job save there", path_.string(),
                                system_reason(error)));
}

fs::path CheckpointFolder::final_path(uint64_t step) const {
  return path_ / step_name(step);
}

fs::path CheckpointFolder::partial_path(uint64_t step) const {
  return path_ / fmt::format(".{}{}", step_name(step), kPartialSuffix);
}

fs::path CheckpointFolder::replaced_path(uint64_t step) const {
  return path_ / fmt::format(".{}{}", step_name(step), kReplacedSuffix);
}

// A job died between the two names of its checkpoint.
void CheckpointFolder::finish_latest() {
  if (!io::is_there(path_ / kNextName)) return;
  if (const std::string step = completed_next(path_); !step.empty()) {
    const std::string line = step + "\n";
    io::write_file_atomically(path_ / kLatestName, std::as_bytes(std::span(line)));
    log_.warning(fmt::format("{} in {} is the latest now: a job died while naming it", step, path_.string()));
  }
  const io::RemovedAtEnd removed(path_ / kNextName, log_);
}

void CheckpointFolder::clean() {
  const auto is_replaced = [](const std::string& name) {
    return !step_of_aside(name, kReplacedSuffix).empty();
  };
  const auto is_partial = [](const std::string& name) {
    return !step_of_aside(name, kPartialSuffix).empty();
  };
  for (const std::string& name : io::names_in(path_, is_replaced)) {
    const std::string step = step_of_aside(name, kReplacedSuffix);
    if (!io::is_there(path_ / step)) {
      io::rename_path(path_ / name, path_ / step);
      sync();
      log_.warning(
          fmt::format("{} in {} has its name back: a job died while replacing it", step, path_.string()));
    } else {
      log_.info(fmt::format("removing {} from {}: a newer {} took its place", name, path_.string(), step));
      const io::RemovedAtEnd removed(path_ / name, log_);
    }
  }
  for (const std::string& name : io::names_in(path_, is_partial)) {
    log_.info(fmt::format("removing {} ({}) from {}: a job died while saving it", name,
                          format_bytes(bytes_below(path_ / name)), path_.string()));
    const io::RemovedAtEnd removed(path_ / name, log_);
  }
  // What dies beside a checkpoint: texts that had not got their name, and the weights in 16 bits.
  const auto is_left_aside = [](const std::string& name) {
    return name == fmt::format("{}.new", kLatestName) || name == fmt::format("{}.new", kNextName) ||
           name == ".weights.partial" || name.starts_with(".terrace-write-test-");
  };
  for (const std::string& name : io::names_in(path_, is_left_aside)) {
    const io::RemovedAtEnd removed(path_ / name, log_);
  }
}

void CheckpointFolder::sync() const {
  io::sync_descriptor(fd_, path_);
}

}  // namespace terrace
