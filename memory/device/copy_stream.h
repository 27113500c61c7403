// CopyStream: an in-order copy queue with a thread of its own. A CopyEngine moves the bytes: a GPU's, or by
// default memcpy, the host's stand-in for it. It knows addresses only: it must never decide what is copied,
// nor touch memory outside of a task.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <terrace/base/event.h>
#include <terrace/base/mutex.h>
#include <terrace/memory/device/copy_observer.h>

namespace terrace {

struct CopyTask {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
  // Null, or waited for first. It must have been begun before enqueue() (an event that is done is not waited
  // for). If it failed, nothing is copied and its failure is passed on to `done`. It must live and stay as it
  // is until `done`.
  const Event* after = nullptr;
  // Begun by the caller; completed once here, after the bytes have arrived and every counter has been
  // changed.
  Event* done = nullptr;
  // Null, or lowered by one when the task is over, just before `done` is completed.
  std::atomic<uint32_t>* in_flight = nullptr;
  // Whoever is told when bytes have crossed the link; before `done` is completed.
  CopyNote note = {};
  // The engine's own: handed to it and never looked at.
  void* for_engine = nullptr;
};

// Moves the bytes of one stream's tasks. start() is called in the order of the tasks on the stream's thread,
// finish() in the same order on one other thread (on the same one with a depth of 1), once for every start()
// that returned null, and never with more than depth() tasks between the two.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  virtual uint32_t depth() const = 0;
  // Begins to move task.bytes > 0; tasks take effect in the order of their starts. `place` < depth() is the
  // task's until its finish(). Returns why it could not.
  virtual std::exception_ptr start(const CopyTask& task, uint32_t place) noexcept = 0;
  // In place of start() for a task that is not begun, because its `after` failed.
  virtual void skip(const CopyTask& task) noexcept = 0;
  // Returns when the bytes are there, or why they are not.
  virtual std::exception_ptr finish(const CopyTask& task, uint32_t place) noexcept = 0;
};

struct CopyStreamOptions {
  uint32_t queue_depth = 256;
  // Paces copies by sleeping on the real clock, to play a link of this rate. 0: as fast as memory. Only
  // without an engine.
  uint64_t link_bytes_per_second = 0;
  CopyEngine* engine = nullptr;  // null: memcpy on the stream's thread; must outlive the stream
};

// Tasks run one after another in the order of enqueue(). Invariant: everything enqueued is completed exactly
// once.
class CopyStream {
 public:
  explicit CopyStream(CopyStreamOptions options = {});
  // Runs what is queued to its end; the events waited for must still come.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Thread-safe; allocates nothing. Blocks while queue_depth tasks are waiting, so the thread that completes
  // a task's `after` must not be one that enqueues.
  void enqueue(const CopyTask& task);

  // Bytes copied from a source so far; a skipped task adds nothing. Includes a task as soon as its `done` is
  // done.
  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_acquire); }
  // The time that these took by the host's clock, pacing included: of each from when it was started, or from
  // when the one before it was seen to be over if that was later, to when it was seen to be over itself.
  uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_acquire); }

 private:
  struct Started {
    CopyTask task;
    std::exception_ptr failure;
    bool in_engine = false;
    uint64_t begun_ns = 0;
    uint64_t noted_ns = 0;  // by the observer's clock
  };

  void run();
  Started start(const CopyTask& task, uint32_t place) noexcept;
  void finish(Started& started, uint32_t place) noexcept;
  void run_finisher();
  // Blocks while the engine is full.
  void hand_to_finisher(const CopyTask& task);
  void pace(uint64_t bytes);

  const CopyStreamOptions options_;
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
  std::chrono::steady_clock::time_point link_free_at_{};  // of the stream's thread
  // Of the thread that finishes.
  uint64_t last_end_ns_ = 0;
  uint64_t last_noted_end_ns_ = 0;
  const CopyObserver* last_observer_ = nullptr;
  Mutex mutex_;
  std::condition_variable_any not_empty_;
  std::condition_variable_any not_full_;
  std::vector<CopyTask> queue_ TERRACE_GUARDED_BY(mutex_);  // a ring of queue_depth tasks
  size_t first_ TERRACE_GUARDED_BY(mutex_) = 0;
  size_t count_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  // With an engine of more than one task. A task's place is written by the stream's thread before it counts
  // as started, and read by the finisher.
  Mutex started_mutex_;
  std::condition_variable_any started_changed_;
  std::vector<Started> started_;  // a ring of the engine's depth
  uint64_t started_count_ TERRACE_GUARDED_BY(started_mutex_) = 0;
  uint64_t finished_count_ TERRACE_GUARDED_BY(started_mutex_) = 0;
  bool no_more_ TERRACE_GUARDED_BY(started_mutex_) = false;
  std::thread finisher_;
};

}  // namespace terrace
