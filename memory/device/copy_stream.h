// CopyStream: an in-order copy queue with a thread of its own. A CopyEngine moves the bytes: a GPU's, or by
// default memcpy as its stand-in, which the caller runs itself where a copy is small and nothing is before
// it. The stream knows addresses only: it must never decide what is copied, nor touch memory outside of a
// task.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <terrace/base/copy_observer.h>
#include <terrace/base/event.h>
#include <terrace/base/mutex.h>

namespace terrace {

struct CopyTask {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
  // The task waits for `after` first, unless it is null. It must have been begun before enqueue() (an event
  // that is done is not waited for). If it failed, nothing is copied and its failure is passed on to `done`.
  // It must live and not be begun again until `done` is done.
  const Event* after = nullptr;
  // The caller begins `done`; the stream completes it once, after the bytes have arrived and every counter
  // has been changed.
  Event* done = nullptr;
  // The counter, unless null, is lowered by one when the task is over, just before `done` is completed.
  std::atomic<uint32_t>* in_flight = nullptr;
  // The note's observer hears of bytes that have crossed the link, before `done` is completed.
  CopyNote note = {};
  // The stream hands this to the engine and never looks at it.
  void* for_engine = nullptr;
};

// CopyEngine: moves the bytes of one stream's tasks. start() is called in the order of the tasks on the
// stream's thread, finish() in the same order on one other thread (on the same one with a depth of 1), once
// for every start() that returned null, and never with more than depth() tasks between the two.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  virtual uint32_t depth() const = 0;
  // Begins to move task.bytes, which may be none; tasks take effect in the order of their starts. `place` <
  // depth() is the task's until its finish(). Returns null, or the reason of a failure.
  virtual std::exception_ptr start(const CopyTask& task, uint32_t place) noexcept = 0;
  // Called in place of start() for a task that is not begun, because its `after` failed.
  virtual void skip(const CopyTask& task) noexcept = 0;
  // Waits until the bytes are there. Returns null, or the reason of a failure.
  virtual std::exception_ptr finish(const CopyTask& task, uint32_t place) noexcept = 0;
};

inline constexpr uint64_t kCopiedByCaller = 256 * 1024;

struct CopyStreamOptions {
  uint32_t queue_depth = 256;
  // Copies are paced by sleeping on the real clock, to simulate a link of this rate; 0: as fast as memory. It
  // takes effect only without an engine.
  uint64_t link_bytes_per_second = 0;
  CopyEngine* engine = nullptr;  // null: memcpy; must outlive the stream
  bool caller_makes_small_copies = true;
};

// Tasks run one after another in the order of enqueue(). Invariant: everything enqueued is completed exactly
// once.
class CopyStream {
 public:
  explicit CopyStream(CopyStreamOptions options = {});
  // Runs all queued tasks to their end; the events that they wait for must still come.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Thread-safe; allocates nothing. Blocks while queue_depth tasks are waiting, so the thread that completes
  // a task's `after` must not be one that enqueues. Without an engine and a rate, and unless the options
  // forbid it, a copy of at most kCopiedByCaller bytes that has nothing to wait for is over when this
  // returns: waking the stream's thread and waiting for it would take longer.
  void enqueue(const CopyTask& task);

  // Bytes copied so far; a skipped task adds nothing. They include a task as soon as its `done` is done.
  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_acquire); }
  // The time that copies took by the host's clock, pacing included. A copy's time begins when it was started,
  // or when the copy before it was seen to be over if that was later, and ends when it was seen to be over
  // itself.
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

  // Whether the calling thread makes this copy itself.
  bool is_for_caller(const CopyTask& task) const TERRACE_REQUIRES(mutex_);

  const CopyStreamOptions options_;
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
  std::chrono::steady_clock::time_point link_free_at_{};  // used by the stream's thread
  // The next three are used by the thread that finishes tasks: the finisher where there is one, else the
  // thread that has set is_running_.
  uint64_t last_end_ns_ = 0;
  uint64_t last_noted_end_ns_ = 0;
  const CopyObserver* last_observer_ = nullptr;
  Mutex mutex_;
  std::condition_variable_any not_empty_;
  std::condition_variable_any not_full_;
  std::vector<CopyTask> queue_ TERRACE_GUARDED_BY(mutex_);  // a ring of queue_depth tasks
  size_t first_ TERRACE_GUARDED_BY(mutex_) = 0;
  size_t count_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool is_running_ TERRACE_GUARDED_BY(mutex_) = false;  // a task that was taken is not over
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  // The rest is for an engine of more than one task. The stream's thread writes a task's place before the
  // task counts as started; the finisher reads it.
  Mutex started_mutex_;
  std::condition_variable_any started_changed_;
  std::vector<Started> started_;  // a ring of the engine's depth
  uint64_t started_count_ TERRACE_GUARDED_BY(started_mutex_) = 0;
  uint64_t finished_count_ TERRACE_GUARDED_BY(started_mutex_) = 0;
  bool no_more_ TERRACE_GUARDED_BY(started_mutex_) = false;
  std::thread finisher_;
};

}  // namespace terrace
