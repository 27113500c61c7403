// The saved states at a path, and whether they are whole: checkpoints of a --save folder and commits of the
// nvme tier. Only prune_*() changes, locks or removes anything, and nothing holds more than a block of a
// state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {

struct SavedState {
  enum class Kind : uint8_t { checkpoint, commit, retained_commit };
  Kind kind = Kind::checkpoint;
  std::filesystem::path path;  // the folder of the step, or the file of the commit's manifest
  std::filesystem::file_time_type time;
  uint64_t commit = 0;     // the commit's number; 0 for a checkpoint
  uint32_t ranks = 1;      // a commit has a shard of each of them; `path` is the manifest of the first there
  bool is_second = false;  // a commit is in the second place of its ranks (TierPlace)
  CheckpointInfo run;      // of a damaged state, as much as is known
  uint64_t bytes = 0;      // of the state
  bool is_latest = false;  // a run would resume from this one
  std::string trouble;     // judged by manifests and sizes; empty: whole
  bool may_be_whole = false;  // the trouble is that a drive did not read it
  // A program has made it that embeds the memory manager: `run` has nothing of it.
  bool is_of_other_program = false;
  // Folders of some ranks are not there, though they may only be out of sight; the others cannot tell.
  bool is_incomplete = false;
};
std::string_view name_of(SavedState::Kind kind);

struct BadBlock {
  std::filesystem::path file;
  std::string place;    // "block 3", "chunk 1, block 3"
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  Reason reason;
};

bool is_checkpoint(const std::filesystem::path& path);  // one step's folder
bool is_checkpoint_folder(
    const std::filesystem::path& path);  // holds such folders, or the name of the latest

// Lists a step's folder, or the folders in the one above, oldest first. Throws Error(io) when it cannot be
// read.
std::vector<SavedState> list_checkpoints(const std::filesystem::path& path);

// Returns why no run could resume from the checkpoint that `latest` names in this folder, judged by names;
// empty if one could.
std::string latest_trouble(const std::filesystem::path& folder);

// Reads every byte of a checkpoint, reports each damaged block and returns the bytes read. A fault of its
// manifest or of a whole file is an Error.
uint64_t verify_checkpoint(const std::filesystem::path& folder, FunctionRef<void(const BadBlock&)> bad);

// Removes the checkpoints that `goes` names and returns the removed ones. The one that `latest` names goes
// last, together with `latest`. A folder with a file that no save makes is left alone, with a warning. A
// crash leaves each whole or gone. Throws Error(io) when another job is saving there.
std::vector<std::filesystem::path> prune_checkpoints(const std::filesystem::path& folder,
                                                     FunctionRef<bool(const SavedState&)> goes, Log& log);

}  // namespace terrace
