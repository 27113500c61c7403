// LaneQueue: the operations of one lane of one rank, carried out one after the other on a thread that begins
// with the first of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <thread>

#include <terrace/base/mutex.h>
#include <terrace/comm/operations/operation.h>
#include <terrace/comm/operations/operation_ring.h>

namespace terrace {

// LaneRunner: carries an operation out to its end, its `done` included.
class LaneRunner {
 public:
  virtual ~LaneRunner() = default;
  virtual void run(const CommOperation& operation) noexcept = 0;
};

class LaneQueue {
 public:
  // `runner` outlives the queue.
  LaneQueue(LaneRunner& runner, uint32_t depth) : runner_(runner), queue_(depth) {}
  ~LaneQueue();  // waits for the end of everything that was asked for
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;

  // Blocks while `depth` operations wait. Allocates nothing but, with the first one, the thread.
  void enqueue(const CommOperation& operation);

 private:
  void work();

  LaneRunner& runner_;
  Mutex mutex_;
  std::condition_variable_any not_empty_;
  std::condition_variable_any not_full_;
  OperationRing queue_ TERRACE_GUARDED_BY(mutex_);
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
