#include "train/train_header.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/inventory.h>
#include <terrace/runtime/config/compute_threads.h>

#include "text_table.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The folder and those above it that are not there, the lowest first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  fs::path path = fs::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "a/b/" is "a/b"
  for (; !io::is_there(path) && path.has_relative_path(); path = path.parent_path()) missing.push_back(path);
  return missing;
}

// A path that is not there, or that this user may not use, was named by mistake: the run is refused before it
// begins, as for a wrong flag. Anything else is a failure of the system.
[[noreturn]] void fail_to_use(const char* what, const fs::path& path, int error, const Reason& reason,
                              const char* advice) {
  constexpr int kMistakes[] = {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, ELOOP, ENAMETOOLONG};
  const bool is_mistake = std::ranges::find(kMistakes, error) != std::end(kMistakes);
  throw Error(is_mistake ? ErrorKind::config : ErrorKind::io, {what, path.string(), reason, advice});
}

[[noreturn]] void fail_to_use(const char* what, const fs::path& path, int error, const char* advice) {
  fail_to_use(what, path, error, system_reason(error), advice);
}

// With a file that has no name, where the file system has such, so that nobody who dies here leaves one.
void try_to_write(const fs::path& folder, const char* what, const char* advice) {
  const int nameless = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (nameless >= 0) {
    close(nameless);
    return;
  }
  std::string name = (folder / ".terrace-write-test-XXXXXX").string();
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail_to_use(what, folder, errno, advice);
  close(fd);
  if (unlink(name.c_str()) != 0) fail_to_use(what, folder, errno, advice);
}

dev_t device_of(const fs::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
}

// Refuses folders that do not exist or cannot be written to, and two names of one folder.
void check_folders(const std::vector<fs::path>& paths) {
  constexpr const char* kWhat = "cannot use the nvme path";
  constexpr const char* kAdvice = "create the folder, or name one on a fast local disk with --nvme-path";
  constexpr const char* kMayNot = "choose a path that this user may write to";
  std::map<std::pair<dev_t, ino_t>, fs::path> seen;
  for (const fs::path& path : paths) {
    struct stat status {};
    const bool is_there = stat(path.c_str(), &status) == 0;
    const int error = is_there ? ENOTDIR : errno;
    if (!is_there || !S_ISDIR(status.st_mode))
      fail_to_use(kWhat, path, error, error == EACCES || error == EPERM ? kMayNot : kAdvice);
    const auto [earlier, is_new] = seen.try_emplace({status.st_dev, status.st_ino}, path);
    if (!is_new) {
      throw Error(ErrorKind::config,
                  {kWhat, path.string(), fmt::format("it is the same folder as {}", earlier->second.string()),
                   "name each folder once; a second folder helps when it is on another drive"});
    }
    try_to_write(path, kWhat, kMayNot);
  }
}

// Returns the bytes that a dead job left below an nvme path. The tier folder removes them before it takes
// space of its own.
uint64_t stale_bytes_in(const fs::path& nvme_path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(nvme_path / "terrace-tier", error)) {
    if (entry.path().extension() == ".tier" && entry.is_regular_file(error)) bytes += entry.file_size(error);
  }
  return bytes;
}

std::string checkpoint_notice(const TrainFlags& flags) {
  if (flags.save.empty())
    return "nothing is saved: add --save DIR to keep the model (a crash loses everything)";
  if (flags.save_every == 0)
    return "nothing is saved before the end: add --save-every N (a crash loses every step of this run)";
  const std::string steps = counted(flags.save_every, "step");
  return fmt::format(
      "crash safety: a checkpoint every {}; after a crash run the same command with --resume auto (at most "
      "{} lost)",
      steps, steps);
}

}  // namespace

std::string crash_notice(const TrainFlags& flags, const TrainConfig& config, const TrainerPlan& plan) {
  if (!plan.memory.keeps_commits) {
    const std::string why =
        fmt::format("nothing is committed on nvme, because {}", plan.memory.why_no_commits);
    return config.placement.states == Placement::nvme ? why + "; " + checkpoint_notice(flags)
                                                      : checkpoint_notice(flags);
  }
  const TerraceConfig& own = config.terrace;
  std::string most;
  if (own.commit_every_steps > 0)
    most = fmt::format("{} step{}", own.commit_every_steps, own.commit_every_steps == 1 ? "" : "s");
  if (own.commit_every_seconds > 0)
    most += fmt::format("{}{} s", most.empty() ? "" : " or ", own.commit_every_seconds);
  if (most.empty()) {
    return "the state on nvme survives any crash, but terrace.commit_every_steps and _seconds are 0: only "
           "the "
           "end of the run and its checkpoints commit it";
  }
  return fmt::format(
      "crash safety: a commit on nvme every {}; after a crash run the same command with --resume auto (at "
      "most {} and the commit in progress are lost)",
      most, most);
}

void check_nvme_folders(const PlacementConfig& placement) {
  if (placement.parameters == Placement::nvme) check_folders(placement.parameter_paths);
  if (placement.states == Placement::nvme) check_folders(placement.state_paths);
}

namespace {

// Returns true if the checkpoint to resume from is one of `folder`'s, or no checkpoint is named.
bool goes_on_from(const std::string& resume, const fs::path& folder) {
  if (resume.empty() || resume == kResumeAuto || resume == kResumeNvme) return true;
  std::error_code error;
  if (fs::equivalent(resume, folder, error)) return true;
  return fs::equivalent(fs::absolute(resume).lexically_normal() / "..", folder, error);
}

}  // namespace

MadeFolders::~MadeFolders() {
  for (const fs::path& folder : made_) {
    if (rmdir(folder.c_str()) != 0 && errno != ENOENT) return;
  }
}

SaveFolderOfRun open_save_folder(const TrainFlags& flags, const TrainerPlan& plan, Log& log) {
  SaveFolderOfRun opened;
  if (flags.save.empty()) return opened;
  constexpr const char* kWhat = "cannot save checkpoints in";
  constexpr const char* kAdvice = "name a folder that can be written to with --save";
  const fs::path folder = flags.save;
  std::error_code error;
  const std::vector<fs::path> missing = missing_folders(folder);
  const fs::path existing = missing.empty() ? fs::absolute(folder) : missing.back().parent_path();
  fs::create_directories(folder, error);
  opened.made = MadeFolders(missing);
  if (error) {
    fail_to_use(
        kWhat, folder, error.value(),
        fmt::format("it cannot be created below {}: ", existing.string()) + system_reason(error.value()),
        kAdvice);
  }
  const bool has_checkpoints = is_checkpoint_folder(folder);
  if (flags.resume.empty() && has_checkpoints) {
    throw Error(ErrorKind::config, {"this run would replace the checkpoints of another", folder.string(),
                                    "it holds checkpoints and --resume is not given",
                                    "give --resume auto to go on from them, or save to another folder"});
  }
  if (!goes_on_from(flags.resume, folder) && has_checkpoints) {
    throw Error(ErrorKind::config, {"this run would mix its checkpoints with those of another",
                                    folder.string(), "it does not hold the one that --resume names",
                                    "save to the folder of that checkpoint, or to one of its own"});
  }
  try_to_write(folder, kWhat, kAdvice);

  uint64_t needed = plan.saved_state_bytes;
  uint64_t available = io::free_bytes_at(folder);
  for (const auto& [path, bytes, least_bytes] : plan.disk) {
    if (device_of(path) != device_of(folder)) continue;
    needed += least_bytes;
    available += stale_bytes_in(path);
  }
  if (needed <= available) {
    opened.folder = std::make_unique<CheckpointFolder>(folder, log);
    return opened;
  }
  throw Error(ErrorKind::capacity, {"there is no room for a checkpoint in", folder.string(),
                                    fmt::format("{} are needed there, tier files included, and {} are free",
                                                format_bytes(needed), format_bytes(available)),
                                    "free space there, or name a folder on a larger disk with --save"});
}

}  // namespace terrace
