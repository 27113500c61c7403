#include <terrace/comm/operations/lane_queue.h>

namespace terrace {

LaneQueue::~LaneQueue() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LaneQueue::enqueue(const CommOperation& operation) {
  {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    not_full_.wait(mutex_, [this] { return !queue_.full(); });
    queue_.push(operation);
  }
  not_empty_.notify_one();
}

void LaneQueue::work() {
  while (true) {
    CommOperation operation;
    {
      const MutexLock lock(mutex_);
      not_empty_.wait(mutex_, [this] { return !queue_.empty() || stop_; });
      if (queue_.empty()) return;
      operation = queue_.pop();
    }
    not_full_.notify_one();
    runner_.run(operation);
  }
}

}  // namespace terrace
