// UpdateThread: runs an update beside the step thread, with an engine of its own and loops of its own over
// the compute threads. It decides nothing: begin(), allow() and add() give it the order, the constants and
// the chunks. It must never touch the device.
//
// Only the step thread calls it. A failure stops the update: the chunks left undone are completed with the
// failure in UpdateProgress, and finish() throws it.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/mutex.h>
#include <terrace/base/workers.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/update/optimizer_pipeline.h>
#include <terrace/offload/update/update_progress.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class UpdateThread {
 public:
  // `engine` is null when nothing lives on nvme; `workers` are those of the step thread. The references
  // outlive this.
  UpdateThread(uint32_t chunk_count, OptimizerPipeline& pipeline, UpdateProgress& progress,
               std::unique_ptr<io::Engine> engine, const Workers& workers, StepWatch& watch);
  ~UpdateThread();  // waits for the update in progress
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // Starts an update without chunks, which may not change anything yet. `in_order` is UpdateRun::in_order.
  void begin(bool in_order);
  // Allows the update to change the state. What `constants` refer to stays until finish().
  void allow(const UpdateConstants& constants);
  // Adds a chunk, which was begun in UpdateProgress.
  void add(ChunkId chunk);
  // Says that no more chunks follow.
  void close();
  // True between begin() and finish().
  bool busy() const { return busy_; }
  // Waits for the update of all added chunks and for the end of everything in flight; if the update was never
  // allowed, only for the latter. Throws the update's failure.
  void finish();

 private:
  void work();
  void run(bool in_order);
  void update();
  // Gives the pipeline what came since the last call. Returns true if no more will come.
  bool take_news();
  bool has_news() const TERRACE_REQUIRES(mutex_);
  void complete_rest(const std::exception_ptr& failure);

  OptimizerPipeline& pipeline_;
  UpdateProgress& progress_;
  std::unique_ptr<io::Engine> engine_;  // destroyed by the thread, its owner
  Workers workers_;                     // loops beside those of the step thread
  StepWatch& watch_;
  bool busy_ = false;     // used by the step thread
  size_t taken_ = 0;      // used by this thread: chunks taken from added_
  bool allowed_ = false;  // used by this thread: the pipeline was told

  mutable Mutex mutex_;
  std::condition_variable_any news_;   // for the thread
  std::condition_variable_any ended_;  // for the step thread
  std::vector<ChunkId> added_ TERRACE_GUARDED_BY(mutex_);
  UpdateConstants constants_ TERRACE_GUARDED_BY(mutex_);
  bool may_change_ TERRACE_GUARDED_BY(mutex_) = false;
  bool in_order_ TERRACE_GUARDED_BY(mutex_) = false;
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;
  bool running_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace
