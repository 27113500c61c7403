#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/train/checkpoint/commit_inventory.h>
#include <terrace/runtime/train/checkpoint/internal/folders.h>
#include <terrace/runtime/train/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kFewestDigits = 8;
constexpr size_t kMostDigits = std::numeric_limits<uint64_t>::digits10 + 1;
constexpr uint64_t kMaxLatestBytes = 4096;

// Of `latest` and its like; empty when there is none.
std::string small_text(const fs::path& path) {
  if (!io::is_there(path)) return "";
  const std::vector<std::byte> bytes = io::read_whole_file(path, kMaxLatestBytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string checkpoints_in(const fs::path& folder) {
  constexpr size_t kNamed = 8;
  const std::vector<std::string> names = io::names_in(folder, [&](const std::string& name) {
    return is_step_name(name) && io::is_there(folder / name / kManifestName);
  });
  if (names.empty()) {
    if (is_tier_path(folder)) {
      return "it is an nvme path of training: a run that goes on from its last commit "
             "(TrainerOptions::tier_start) can save a checkpoint";
    }
    return io::is_there(folder / "config.json")
               ? "it holds a model's weights: give it as the model, or name a folder of checkpoints"
               : "name a folder in which a run has saved checkpoints";
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
  if (io::is_there(path / kManifestName)) return path;
  const fs::path named = path.filename().empty() ? path.parent_path() : path;
  const fs::path replaced =
      named.parent_path() / ("." + named.filename().string() + std::string(kReplacedSuffix));
  const bool was_moved = is_step_name(named.filename().string()) && !io::is_there(named) &&
                         io::is_there(replaced / kManifestName);
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

std::string step_of_aside(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() < 1 + suffix.size()) return "";
  const std::string_view step = name.substr(1, name.size() - 1 - suffix.size());
  return is_step_name(step) ? std::string(step) : "";
}

std::string next_text(uint64_t step, std::string_view manifest) {
  return fmt::format("{} {}\n", step_name(step), hex_text(checksum_of(std::as_bytes(std::span(manifest)))));
}

std::string completed_next(const fs::path& folder) {
  try {
    const std::string next = small_text(folder / kNextName);
    const std::string name = next.substr(0, next.find(' '));
    const std::optional<uint64_t> step = step_of(name);
    if (!step || !io::is_there(folder / name / kManifestName)) return "";
    const std::vector<std::byte> manifest =
        io::read_whole_file(folder / name / kManifestName, kMaxManifestBytes);
    const std::string_view text(reinterpret_cast<const char*>(manifest.data()), manifest.size());
    return next_text(*step, text) == next ? name : "";
  } catch (const Error&) {  // what cannot be read names nothing
    return "";
  }
}

bool remove_checkpoint(const CheckpointFolder& folder, const fs::path& path, Log& log) {
  const auto is_foreign = [](const std::string& name) {
    return name != kManifestName && name != kStatesName && name != kFrozenName;
  };
  if (const std::vector<std::string> foreign = io::names_in(path, is_foreign); !foreign.empty()) {
    log.warning(fmt::format("{} is left alone: it holds {}, which is not of a checkpoint", path.string(),
                            foreign.front()));
    return false;
  }
  // Another name first: whoever finds a step's folder finds all of it.
  const fs::path aside = folder.path() / fmt::format(".{}{}", path.filename().string(), kPartialSuffix);
  io::rename_path(path, aside);
  folder.sync();
  const io::RemovedAtEnd removed(aside, log);
  return true;
}

fs::path find_checkpoint(const fs::path& path) {
  if (const fs::path found = step_folder(path); !found.empty()) return found;
  struct stat status;
  if (stat(path.c_str(), &status) != 0)
    no_checkpoint(ErrorKind::io, path, system_reason(errno), "check the path");
  if (!S_ISDIR(status.st_mode))
    no_checkpoint(ErrorKind::io, path, "it is not a folder", "name the folder of the checkpoints");
  if (const std::string next = completed_next(path); !next.empty()) return path / next;
  const fs::path latest = path / kLatestName;
  if (!io::is_there(latest)) {
    no_checkpoint(ErrorKind::io, path,
                  fmt::format("it has neither \"{}\" nor \"{}\"", kLatestName, kManifestName),
                  checkpoints_in(path));
  }
  std::string name = small_text(latest);
  if (name.ends_with('\n')) name.pop_back();
  if (!is_step_name(name))
    no_checkpoint(ErrorKind::corrupt, latest, "it does not hold the name of a checkpoint",
                  checkpoints_in(path));
  const fs::path found = step_folder(path / name);
  if (!found.empty()) return found;
  no_checkpoint(ErrorKind::corrupt, latest,
                io::is_there(path / name) ? fmt::format("{} lacks its {}", name, kManifestName)
                                          : fmt::format("it names {}, which is not there", name),
                checkpoints_in(path));
}

}  // namespace terrace::checkpoint
