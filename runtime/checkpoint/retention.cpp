// Which checkpoints of a folder a run goes on from, and which it has no more use for.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

struct Found {
  uint64_t step;
  fs::path path;
};

// Every folder of a step that has a manifest, the newest step first.
std::vector<Found> checkpoints_in(const fs::path& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<uint64_t> step = checkpoint::step_of(entry->path().filename().string());
    if (step && io::is_there(entry->path() / checkpoint::kManifestName))
      found.push_back({*step, entry->path()});
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(ErrorKind::io,
                {"cannot list the checkpoint folder", folder.string(), system_reason(error.value()), ""});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

// What `latest` names, or nothing where that cannot be found.
std::optional<fs::path> latest_in(const fs::path& folder) {
  try {
    return checkpoint::find_checkpoint(folder);
  } catch (const Error& failure) {
    if (is_system_refusal(failure)) throw;
    return std::nullopt;
  }
}

}  // namespace

std::vector<fs::path> checkpoints_to_resume_from(const fs::path& folder) {
  const std::vector<Found> found = checkpoints_in(folder);
  const std::optional<fs::path> latest = latest_in(folder);
  std::vector<fs::path> paths;
  if (latest) paths.push_back(*latest);
  const std::optional<uint64_t> before =
      latest ? checkpoint::step_of(latest->filename().string()) : std::optional<uint64_t>();
  for (const Found& each : found) {
    if (!before || each.step < *before) paths.push_back(each.path);
  }
  return paths;
}

void remove_older_checkpoints(const CheckpointFolder& folder, uint64_t run_id, uint64_t step,
                              uint64_t keep_count, Log& log) {
  TERRACE_ASSERT(keep_count > 0, "the checkpoint just saved is always kept");
  uint64_t kept = 0;
  for (const Found& each : checkpoints_in(folder.path())) {
    if (each.step > step) continue;
    try {
      if (each.step != step && read_checkpoint_info(each.path).run_id != run_id) continue;
      if (++kept <= keep_count || !folder.saves().remove(each.path)) continue;
      log.info(fmt::format("removed {}: {} newer ones are kept", each.path.string(), keep_count));
    } catch (const Error& failure) {
      log.warning(failure);
    }
  }
}

}  // namespace terrace
