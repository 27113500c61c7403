#include <terrace/runtime/checkpoint/inventory.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/load_steps.h>
#include <terrace/runtime/saved/block_file.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

using checkpoint::DataFile;
using checkpoint::kLatestName;
using checkpoint::Manifest;
using saved::BlockReader;

std::string size_trouble(const fs::path& file, uint64_t expected) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(file, error);
  if (error) return fmt::format("{}: {}", file.filename().string(), error.message());
  if (bytes == expected) return "";
  return fmt::format("{} has {} bytes and the manifest says {}", file.filename().string(), bytes, expected);
}

SavedState look_at(const fs::path& folder) {
  SavedState state;
  state.path = folder;
  std::error_code ignored;
  state.time = fs::last_write_time(folder / checkpoint::kManifestName, ignored);
  state.run.step = checkpoint::step_of(folder.filename().string()).value_or(0);
  try {
    const Manifest manifest = checkpoint::read_manifest_of(folder);
    state.run = manifest.info;
    for (const saved::StateManifest::File& file : manifest.files()) {
      state.bytes += file.data.bytes;
      if (state.trouble.empty()) state.trouble = size_trouble(folder / file.name, file.data.bytes);
    }
  } catch (const Error& failure) {
    state.may_be_whole = is_drive_failure(failure.parts().error_number);
    if (is_system_refusal(failure) && !state.may_be_whole) throw;
    state.trouble = failure.parts().reason;
  }
  return state;
}

// Folders that look like checkpoints by their names, or by those of their files.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!entry->is_directory(ignored) || !saved::why_no_state_name(name).empty()) continue;
    const bool has_files = io::is_there(entry->path() / checkpoint::kManifestName) &&
                           io::is_there(entry->path() / checkpoint::kStatesName);
    if (checkpoint::is_step_name(name) || has_files) found.push_back(entry->path());
  }
  if (error) {
    throw Error(ErrorKind::io, {"cannot list the checkpoint folder", folder.string(),
                                system_reason(error.value()), "check the path"});
  }
  std::sort(found.begin(), found.end());
  return found;
}

uint64_t verify_file(const fs::path& path, const DataFile& file, FunctionRef<void(const BadBlock&)> bad) {
  BlockReader reader(path, file);
  for (uint64_t block = 0; block < file.block_checksums.size(); ++block) {
    const uint64_t offset = block * checkpoint::kBlockBytes;
    const uint64_t bytes = std::min(checkpoint::kBlockBytes, file.bytes - offset);
    try {
      reader.seek(offset);
    } catch (const Error& failure) {
      Reason reason = failure.parts().why();  // "block 3 (... bytes at offset ...): ..."
      const size_t colon = reason.text.find("): ");
      if (colon != std::string::npos) reason.text.erase(0, colon + 3);
      bad({path, fmt::format("block {}", block), offset, bytes, std::move(reason)});
    }
  }
  return file.bytes;
}

}  // namespace

std::string_view name_of(SavedState::Kind kind) {
  switch (kind) {
    case SavedState::Kind::checkpoint:
      return "checkpoint";
    case SavedState::Kind::commit:
      return "commit";
    case SavedState::Kind::retained_commit:
      return "retained commit";
  }
  return "";
}

bool is_checkpoint(const fs::path& path) {
  return io::is_there(path / checkpoint::kManifestName);
}

bool is_checkpoint_folder(const fs::path& path) {
  return io::is_folder(path) && (io::is_there(path / kLatestName) || !folders_in(path).empty());
}

std::vector<SavedState> list_checkpoints(const fs::path& path) {
  if (is_checkpoint(path)) return {look_at(path)};
  fs::path latest;
  try {
    latest = checkpoint::find_checkpoint(path);
  } catch (const Error& failure) {  // none is named, or what is named is not there
    if (is_system_refusal(failure) && !is_drive_failure(failure.parts().error_number)) throw;
  }
  std::vector<SavedState> states;
  for (const fs::path& folder : folders_in(path)) {
    states.push_back(look_at(folder));
    states.back().is_latest = folder.filename() == latest.filename();
  }
  std::ranges::stable_sort(states, {}, [](const SavedState& state) { return state.run.step; });
  return states;
}

std::string latest_trouble(const fs::path& folder) {
  try {
    checkpoint::find_checkpoint(folder);
    return "";
  } catch (const Error& failure) {
    return failure.parts().reason;
  }
}

std::string why_not_saved(const CheckpointFolder& folder, uint64_t run_id, uint64_t step) {
  try {
    const fs::path found = checkpoint::find_checkpoint(folder.path());
    if (found != folder.final_path(step)) return "the latest one there is " + found.filename().string();
    if (checkpoint::read_manifest_of(found).info.run_id != run_id) return "it is another run's";
    return look_at(found).trouble;
  } catch (const Error& failure) {
    return failure.parts().reason;
  }
}

uint64_t verify_checkpoint(const fs::path& folder, FunctionRef<void(const BadBlock&)> bad) {
  const Manifest manifest = checkpoint::read_manifest_of(folder);
  uint64_t bytes = 0;
  for (const saved::StateManifest::File& file : manifest.files())
    bytes += verify_file(folder / file.name, file.data, bad);
  return bytes;
}

std::vector<fs::path> prune_checkpoints(const fs::path& folder, FunctionRef<bool(const SavedState&)> goes,
                                        Log& log) {
  const CheckpointFolder save_folder(folder, log);
  std::vector<SavedState> states = list_checkpoints(folder);
  // What a run would take up goes last.
  std::stable_partition(states.begin(), states.end(),
                        [](const SavedState& state) { return !state.is_latest; });
  std::vector<fs::path> removed;
  for (const SavedState& state : states) {
    if (!goes(state)) continue;
    if (state.is_latest && unlink((folder / kLatestName).c_str()) == 0) save_folder.sync();
    if (save_folder.saves().remove(state.path)) removed.push_back(state.path);
  }
  return removed;
}

}  // namespace terrace
