// CheckpointFolder: the folder into which a run saves its checkpoints. The run has it alone while this object
// lives. It must never remove a file that no save made.
#pragma once

#include <cstdint>
#include <filesystem>

#include <terrace/base/log.h>
#include <terrace/runtime/saved/save_folder.h>

namespace terrace {

class CheckpointFolder {
 public:
  // Makes the folder when it is missing, takes its lock, and repairs it after jobs that died: it removes
  // unfinished checkpoints, gives a checkpoint that was being replaced its name back, and lets `latest` name
  // one that was complete when its job died. `log` outlives this. Throws Error(io) when the folder cannot be
  // used or another job saves there.
  CheckpointFolder(std::filesystem::path folder, Log& log);

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path final_path(uint64_t step) const;
  std::filesystem::path partial_path(uint64_t step) const;

  // Returns when the names in the folder are on the drive. Thread-safe.
  void sync() const { folder_.sync(); }
  const saved::SaveFolder& saves() const { return folder_; }

 private:
  const saved::SaveFolder folder_;
};

}  // namespace terrace
