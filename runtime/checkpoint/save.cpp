#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/save_steps.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>
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

// What shares its bytes with another file is read for its checksums alone.
template <typename Clone, typename Read>
DataFile write_data_file(const fs::path& path, uint64_t bytes, Clone clone, Read read) {
  saved::BlockWriter writer(path);
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

SaveMoment moment_of(saved::PlaceMoment moment) {
  switch (moment) {
    case saved::PlaceMoment::manifest_written:
      return SaveMoment::manifest_written;
    case saved::PlaceMoment::next_written:
      return SaveMoment::next_written;
    case saved::PlaceMoment::old_moved_away:
      return SaveMoment::old_moved_away;
    case saved::PlaceMoment::in_place:
      return SaveMoment::in_place;
    case saved::PlaceMoment::latest_written:
      return SaveMoment::latest_written;
  }
  return SaveMoment::finished;
}

// Removes a partial folder when it goes out of scope; after a save there is none.
class PartialFolder {
 public:
  PartialFolder(const CheckpointFolder& folder, uint64_t step)
      : folder_(folder), path_(folder.partial_path(step)) {
    io::make_folder(path_);
  }
  ~PartialFolder() { folder_.saves().remove_files_of(path_); }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const CheckpointFolder& folder_;
  const fs::path path_;
};

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
  saved::require_replaceable(folder.final_path(info.step), folder.saves().kind());
  require_space(folder, states_bytes, frozen_bytes);

  Manifest manifest{info, {}, {}, kFormatVersion, source.layout(), listed_tensors(source.space())};
  manifest.info.tensor_hash = hash_of(manifest.tensors);
  {
    const PartialFolder partial(folder, info.step);
    hooks.reached(SaveMoment::folder_made);
    ProgressReport progress(log, fmt::format("saving step {}", info.step), states_bytes + frozen_bytes);
    manifest.states = write_states(partial.path() / kStatesName, source, progress);
    hooks.reached(SaveMoment::states_written);
    if (frozen_bytes > 0) {
      manifest.frozen = write_frozen(partial.path() / kFrozenName, source, progress);
      hooks.reached(SaveMoment::frozen_written);
    }
    const auto reached = [&](saved::PlaceMoment moment) { hooks.reached(moment_of(moment)); };
    folder.saves().place(step_name(info.step), manifest_text(manifest), {true, hooks.can_exchange, reached});
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
