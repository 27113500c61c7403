// BackgroundSave: a checkpoint that a thread of its own writes while training goes on, from a source that
// training does not change. Whenever the job dies, it leaves on the drive what save_checkpoint() would leave.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <thread>

#include <terrace/base/log.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/state_source.h>

namespace terrace {

class BackgroundSave {
 public:
  // Begins at once. `folder` and `log` outlive this.
  BackgroundSave(const CheckpointFolder& folder, CheckpointInfo info, std::unique_ptr<StateSource> source,
                 Log& log);
  // Gives up and removes an unfinished checkpoint.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  uint64_t step() const { return info_.step; }
  // True after the save succeeded or failed: finish() then does not wait.
  bool done() const { return done_; }
  // Waits, releases the source, and returns the folder of the step. Throws as save_checkpoint() does. Call it
  // once.
  std::filesystem::path finish();

 private:
  void save();

  const CheckpointFolder& folder_;
  const CheckpointInfo info_;
  std::unique_ptr<StateSource> source_;
  Log& log_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> done_ = false;
  std::filesystem::path saved_;  // belongs to the thread until it ends
  std::exception_ptr failure_;   // belongs to the thread until it ends
  std::thread thread_;
};

}  // namespace terrace
