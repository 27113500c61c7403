#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/internal/block_file.h>
#include <terrace/runtime/train/checkpoint/internal/folders.h>
#include <terrace/runtime/train/checkpoint/internal/manifest.h>
#include <terrace/runtime/train/checkpoint/internal/save_steps.h>

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

// What shares its bytes with another file is read for its checksums alone.
template <typename Clone, typename Read>
DataFile write_data_file(const fs::path& path, uint64_t bytes, Clone clone, Read read) {
  BlockWriter writer(path);
  if (!writer.take_clone(bytes, clone)) writer.reserve(bytes);
  read([&](std::span<const std::byte> run) { writer.write(run); });
  DataFile file = writer.finish();
  TERRACE_ASSERT(file.bytes == bytes, fmt::format("{} got {} of {} bytes", path.string(), file.bytes, bytes));
  return file;
}

// A sink that also says how far it is.
auto counting(StateSource::Sink sink, ProgressReport& progress) {
  return [sink, &progress](std::span<const std::byte> bytes) {
    sink(bytes);
    progress.add(bytes.size());
  };
}

DataFile write_states(const fs::path& path, StateSource& source, ProgressReport& progress) {
  return write_data_file(
      path, source.states_bytes(), [&](int fd) { return source.clone_states(fd); },
      [&](StateSource::Sink sink) { source.read_states(counting(sink, progress)); });
}

DataFile write_frozen(const fs::path& path, StateSource& source, ProgressReport& progress) {
  return write_data_file(
      path, source.frozen_bytes(), [&](int fd) { return source.clone_frozen(fd); },
      [&](StateSource::Sink sink) { source.read_frozen(counting(sink, progress)); });
}

void write_text(const fs::path& path, const std::string& text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

// Gives the complete partial folder its name. What it replaces lies at the returned path afterwards.
fs::path move_into_place(const CheckpointFolder& folder, uint64_t step, const SaveHooks& hooks) {
  const fs::path partial = folder.partial_path(step);
  const fs::path final_path = folder.final_path(step);
  struct stat status;
  if (lstat(final_path.c_str(), &status) != 0) {
    io::rename_path(partial, final_path);
    return partial;
  }
  if (!S_ISDIR(status.st_mode)) {
    throw Error(ErrorKind::io, {"cannot replace the checkpoint", final_path.string(), "it is not a folder",
                                "Terrace made no such file: move it away"});
  }
  if (hooks.can_exchange && io::exchange_paths(partial, final_path)) return partial;
  // Between these two renames the earlier checkpoint is found under the name it has meanwhile: see
  // find_checkpoint().
  const fs::path replaced = folder.replaced_path(step);
  io::rename_path(final_path, replaced);
  folder.sync();
  hooks.reached(SaveMoment::old_moved_away);
  io::rename_path(partial, final_path);
  return replaced;
}

void write_latest(const CheckpointFolder& folder, uint64_t step) {
  try {
    write_text(folder.path() / kLatestName, step_name(step) + "\n");
  } catch (const Error& failure) {
    ErrorParts parts = failure.parts();
    parts.advice = fmt::format("the checkpoint itself is complete: resume by naming {}",
                               folder.final_path(step).string());
    throw Error(failure.kind(), std::move(parts));
  }
}

}  // namespace

std::string_view name_of(SaveMoment moment) {
  switch (moment) {
    case SaveMoment::folder_made:
      return "folder_made";
    case SaveMoment::states_written:
      return "states_written";
    case SaveMoment::frozen_written:
      return "frozen_written";
    case SaveMoment::manifest_written:
      return "manifest_written";
    case SaveMoment::next_written:
      return "next_written";
    case SaveMoment::old_moved_away:
      return "old_moved_away";
    case SaveMoment::in_place:
      return "in_place";
    case SaveMoment::latest_written:
      return "latest_written";
    case SaveMoment::finished:
      return "finished";
  }
  return "";
}

fs::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info, StateSource& source,
                         Log& log, const SaveHooks& hooks) {
  require_names(info);
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const uint64_t states_bytes = source.states_bytes();
  const uint64_t frozen_bytes = source.frozen_bytes();
  require_space(folder, states_bytes, frozen_bytes);

  Manifest manifest{info, {}, {}, kFormatVersion, source.layout()};
  const fs::path partial = folder.partial_path(info.step);
  io::make_folder(partial);
  {
    io::RemovedAtEnd aside(partial, log);
    hooks.reached(SaveMoment::folder_made);
    ProgressReport progress(log, fmt::format("saving step {}", info.step), states_bytes + frozen_bytes);
    manifest.states = write_states(partial / kStatesName, source, progress);
    hooks.reached(SaveMoment::states_written);
    if (frozen_bytes > 0) {
      manifest.frozen = write_frozen(partial / kFrozenName, source, progress);
      hooks.reached(SaveMoment::frozen_written);
    }
    const std::string text = manifest_text(manifest);
    write_text(partial / kManifestName, text);  // and makes the names in the folder durable
    hooks.reached(SaveMoment::manifest_written);
    const io::RemovedAtEnd next(folder.path() / kNextName, log);
    write_text(folder.path() / kNextName, next_text(info.step, text));
    hooks.reached(SaveMoment::next_written);
    aside.remove_instead(move_into_place(folder, info.step, hooks));
    folder.sync();
    hooks.reached(SaveMoment::in_place);
    write_latest(folder, info.step);
    hooks.reached(SaveMoment::latest_written);
  }
  log.info(fmt::format("saved step {} in {} ({} in {})", info.step, folder.final_path(info.step).string(),
                       format_bytes(states_bytes + frozen_bytes),
                       format_duration(clock.now_ns() - begun_ns)));
  hooks.reached(SaveMoment::finished);
  return folder.final_path(info.step);
}

fs::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info, const FlatSpace& space,
                         Offloader& offloader, Log& log, const SaveHooks& hooks) {
  CheckpointInfo whole = info;
  whole.tensor_hash = hash_of_tensors(space);
  OffloaderSource source(offloader);
  return save_checkpoint(folder, whole, source, log, hooks);
}

}  // namespace checkpoint

std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log) {
  const auto nobody_looks = [](checkpoint::SaveMoment) {};
  return checkpoint::save_checkpoint(folder, info, space, offloader, log, {true, nobody_looks});
}

}  // namespace terrace
