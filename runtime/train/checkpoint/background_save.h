// BackgroundSave: a checkpoint that is written by a thread of its own while training goes on, from a source
// that training does not change. It leaves on the disk what save_checkpoint() leaves, whenever the job dies.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <thread>

#include <terrace/base/log.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/state_source.h>

namespace terrace {

class BackgroundSave {
 public:
  // Begins at once. `info` with its tensor_hash; `folder` and `log` outlive this.
  BackgroundSave(const CheckpointFolder& folder, CheckpointInfo info, std::unique_ptr<StateSource> source,
                 Log& log);
  // Gives up what is not done: nothing of it stays.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  uint64_t step() const { return info_.step; }
  // It was saved, or it failed: finish() does not wait.
  bool done() const { return done_; }
  // Waits, lets go of the source, and returns the folder of the step. Throws as save_checkpoint() does. Once.
  std::filesystem::path finish();

 private:
  void save();

  const CheckpointFolder& folder_;
  const CheckpointInfo info_;
  std::unique_ptr<StateSource> source_;
  Log& log_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> done_ = false;
  std::filesystem::path saved_;  // the thread's until it ends
  std::exception_ptr failure_;   // the same
  std::thread thread_;
};

}  // namespace terrace
