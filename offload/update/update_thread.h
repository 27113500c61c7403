// UpdateThread: runs an update beside the step thread, with an engine of its own and loops of its own over
// the compute threads. It takes what the step thread gives it and decides nothing: which chunks are updated,
// with what and in which order is said by begin(), allow() and add(). It must never touch the device.
//
// All calls are the step thread's. A failure stops the update: chunks that it leaves undone are completed
// with it in UpdateProgress, and finish() throws it.
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
  ~UpdateThread();  // after the update in progress
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // Starts an update of no chunk, which may not change anything yet. As UpdateRun::in_order.
  void begin(bool in_order);
  // It may: `steps` holds the constants of each parameter group and stays until finish().
  void allow(std::span<const OptimizerStep> steps);
  // One more chunk, begun in UpdateProgress.
  void add(ChunkId chunk);
  // No more chunks follow.
  void close();
  // Between begin() and finish().
  bool busy() const { return busy_; }
  // Waits for everything that was added, and for the end of what is in flight; of an update that was never
  // allowed for that only. Throws what went wrong.
  void finish();

 private:
  void work();
  void run(bool in_order);
  void update();
  // Hands on what came since the last time. True: no more will come.
  bool take_news();
  bool has_news() const TERRACE_REQUIRES(mutex_);
  void complete_rest(const std::exception_ptr& failure);

  OptimizerPipeline& pipeline_;
  UpdateProgress& progress_;
  std::unique_ptr<io::Engine> engine_;  // destroyed by the thread, its owner
  Workers workers_;                     // beside those of the step thread
  StepWatch& watch_;
  bool busy_ = false;     // of the step thread
  size_t taken_ = 0;      // of the thread: of added_
  bool allowed_ = false;  // of the thread: the pipeline was told

  mutable Mutex mutex_;
  std::condition_variable_any news_;   // for the thread
  std::condition_variable_any ended_;  // for the step thread
  std::vector<ChunkId> added_ TERRACE_GUARDED_BY(mutex_);
  std::span<const OptimizerStep> steps_ TERRACE_GUARDED_BY(mutex_);
  bool may_change_ TERRACE_GUARDED_BY(mutex_) = false;
  bool in_order_ TERRACE_GUARDED_BY(mutex_) = false;
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;
  bool running_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace
