#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/save_steps.h>
#include <terrace/runtime/saved/block_file.h>

namespace terrace {
namespace checkpoint {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the data files hold the bytes of memory");

// Of a manifest without its checksums, of `latest`, and of what a file system needs for names and maps.
constexpr uint64_t kOverheadBytes = 256 * kKiB;

void require_names(const CheckpointInfo& info) {
  for (const auto& [name, value] : info.position) {
    const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; });
    TERRACE_ASSERT(printable && !name.empty(), fmt::format("\"{}\" is no name for a data position", name));
  }
}

// Asked before the first byte is written, so that a checkpoint that cannot succeed does not fill the disk.
void require_space(const CheckpointFolder& folder, uint64_t states_bytes, uint64_t frozen_bytes) {
  const uint64_t checksums_bytes =
      (block_count(states_bytes) + block_count(frozen_bytes)) * 2 * sizeof(uint64_t);
  const uint64_t needed_bytes = states_bytes + frozen_bytes + checksums_bytes + kOverheadBytes;
  const uint64_t free_bytes = io::free_bytes_at(folder.path());
  if (needed_bytes <= free_bytes) return;
  throw Error(ErrorKind::capacity,
              {"cannot save a checkpoint in", folder.path().string(),
               fmt::format("it takes {} and its file system has {} free", format_bytes(needed_bytes),
                           format_bytes(free_bytes)),
               "free some space, for example remove older checkpoints, or choose a folder on another disk; "
               "an earlier "
               "checkpoint is replaced only when the new one is complete, so both must fit"});
}

// The moments of a place follow those of the files.
SaveMoment moment_of(saved::PlaceMoment moment) {
  return static_cast<SaveMoment>(static_cast<uint8_t>(SaveMoment::manifest_written) +
                                 static_cast<uint8_t>(moment));
}
static_assert(static_cast<uint8_t>(SaveMoment::latest_written) -
                  static_cast<uint8_t>(SaveMoment::manifest_written) ==
              static_cast<uint8_t>(saved::PlaceMoment::latest_written));

}  // namespace

fs::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info, StateSource& source,
                         Log& log, const SaveHooks& hooks) {
  require_names(info);
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const uint64_t states_bytes = source.states_bytes();
  const uint64_t frozen_bytes = source.frozen_bytes();
  require_space(folder, states_bytes, frozen_bytes);
  std::vector<std::string> files = {kStatesName};
  if (frozen_bytes > 0) files.emplace_back(kFrozenName);
  {
    saved::StateWriter writer(folder.saves(), step_name(info.step), std::move(files));
    hooks.reached(SaveMoment::folder_made);
    ProgressReport progress(log, fmt::format("saving step {}", info.step), states_bytes + frozen_bytes);
    std::string facts = write_streams(
        writer, info, source, [&](uint64_t bytes) { progress.add(bytes); }, hooks.reached);
    const auto reached = [&](saved::PlaceMoment moment) { hooks.reached(moment_of(moment)); };
    writer.complete(std::move(facts), {true, hooks.can_exchange, reached});
  }
  log.info(fmt::format("saved step {} in {} ({} in {})", info.step, folder.final_path(info.step).string(),
                       format_bytes(states_bytes + frozen_bytes),
                       format_duration(clock.now_ns() - begun_ns)));
  hooks.reached(SaveMoment::finished);
  return folder.final_path(info.step);
}

fs::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info, const FlatSpace& space,
                         Offloader& offloader, Log& log, const SaveHooks& hooks) {
  OffloaderSource source(offloader, space);
  CheckpointInfo whole = info;
  const std::span<const uint64_t> steps = offloader.state().tensor_steps();
  whole.tensor_steps.assign(steps.begin(), steps.end());
  return save_checkpoint(folder, whole, source, log, hooks);
}

}  // namespace checkpoint

std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log) {
  const auto nobody_looks = [](checkpoint::SaveMoment) {};
  return checkpoint::save_checkpoint(folder, info, space, offloader, log, {true, nobody_looks});
}

}  // namespace terrace
