#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>

#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/commit_inventory.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kFewestDigits = 8;
constexpr size_t kMostDigits = std::numeric_limits<uint64_t>::digits10 + 1;

Wording checkpoints_in(const fs::path& folder) {
  constexpr size_t kNamed = 8;
  const std::vector<std::string> names = io::names_in(folder, [&](const std::string& name) {
    return saved::why_no_state_name(name).empty() && io::is_there(folder / name / kManifestName);
  });
  if (names.empty()) {
    if (is_tier_path(folder)) {
      return "it is an nvme path of training: a run that goes on from its last commit (" + Option::resume +
             ") can save a checkpoint";
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

[[noreturn]] void no_checkpoint(ErrorKind kind, const fs::path& path, const Reason& reason,
                                const Wording& advice) {
  throw Error(kind, {"cannot find a checkpoint in", path.string(), reason, advice});
}

// The folder of a step that has a manifest, under its own name or another; empty when there is none.
fs::path step_folder(const fs::path& path) {
  const fs::path found = saved::state_folder(path, state_kind());
  return !found.empty() && io::is_there(found / kManifestName) ? found : fs::path();
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
  return number_of_digits(name.substr(name.find('-') + 1));
}

saved::StateKind state_kind() {
  return {.files = {kStatesName, kFrozenName, "beside.safetensors", "average.safetensors", "progress.pt",
                    "model.safetensors", "optimizer.safetensors"},
          .files_alone = {"model.safetensors", "optimizer.safetensors", "progress.pt"},
          .is_left_aside = [](std::string_view name) { return name.starts_with(".terrace-write-test-"); }};
}

fs::path find_checkpoint(const fs::path& path) {
  if (const fs::path found = step_folder(path); !found.empty()) return found;
  struct stat status;
  if (stat(path.c_str(), &status) != 0)
    no_checkpoint(ErrorKind::io, path, system_reason(errno), "check the path");
  if (!S_ISDIR(status.st_mode))
    no_checkpoint(ErrorKind::io, path, "it is not a folder", "name the folder of the checkpoints");
  if (const std::string next = saved::completed_next(path, state_kind()); !next.empty()) return path / next;
  const fs::path latest = path / kLatestName;
  const std::optional<std::string> name = saved::latest_name(path);
  if (!name) {
    no_checkpoint(ErrorKind::io, path,
                  fmt::format("it has neither \"{}\" nor \"{}\"", kLatestName, kManifestName),
                  checkpoints_in(path));
  }
  if (!saved::why_no_state_name(*name).empty())
    no_checkpoint(ErrorKind::corrupt, latest, "it does not hold the name of a checkpoint",
                  checkpoints_in(path));
  const fs::path found = step_folder(path / *name);
  if (!found.empty()) return found;
  no_checkpoint(ErrorKind::corrupt, latest,
                io::is_there(path / *name) ? fmt::format("{} lacks its {}", *name, kManifestName)
                                           : fmt::format("it names {}, which is not there", *name),
                checkpoints_in(path));
}

}  // namespace terrace::checkpoint
