// CopyStream: an in-order copy queue with a thread of its own, the host's stand-in for a CUDA stream.
// It knows addresses only: it must never decide what is copied, nor touch memory outside of a task.
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
#include <terrace/memory/copy_observer.h>

namespace terrace {

struct CopyTask {
  std::byte* destination = nullptr;
  // Null fills the destination with zeros; such a task crosses no link: it is neither paced nor counted as
  // copied.
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
};

struct CopyStreamOptions {
  uint32_t queue_depth = 256;
  // Paces copies by sleeping on the real clock, to play a link of this rate. 0: as fast as memory.
  uint64_t link_bytes_per_second = 0;
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
  // The time that these took, pacing included.
  uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_acquire); }

 private:
  void run();
  void execute(const CopyTask& task) noexcept;
  void pace(uint64_t bytes);

  const CopyStreamOptions options_;
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
  std::chrono::steady_clock::time_point link_free_at_{};  // of the stream's thread
  Mutex mutex_;
  std::condition_variable_any not_empty_;
  std::condition_variable_any not_full_;
  std::vector<CopyTask> queue_ TERRACE_GUARDED_BY(mutex_);  // a ring of queue_depth tasks
  size_t first_ TERRACE_GUARDED_BY(mutex_) = 0;
  size_t count_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
