// CheckpointFolder: the folder that a run saves its checkpoints into, which is the run's alone for as long as
// this lives. It must never remove what no save has made.
#pragma once

#include <cstdint>
#include <filesystem>

#include <terrace/base/log.h>

namespace terrace {

class CheckpointFolder {
 public:
  // Makes the folder when it is missing, takes its lock, and brings it in order after jobs that died:
  // unfinished checkpoints are removed, one that was being replaced gets its name back, and `latest` names
  // one that was complete when its job died. `log` outlives this. Throws Error(io) when the folder cannot be
  // used or another job saves there.
  CheckpointFolder(std::filesystem::path folder, Log& log);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path final_path(uint64_t step) const;
  std::filesystem::path partial_path(uint64_t step) const;
  std::filesystem::path replaced_path(uint64_t step) const;

  // Returns when the names in the folder are on the device. Thread-safe.
  void sync() const;

 private:
  void open_and_lock();
  void clean();
  void finish_latest();

  const std::filesystem::path path_;
  Log& log_;
  int fd_ = -1;
};

}  // namespace terrace
