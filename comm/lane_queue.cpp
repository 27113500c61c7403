#include <terrace/comm/lane_queue.h>

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
    not_full_.wait(mutex_, [this] { return count_ < queue_.size(); });
    queue_[(first_ + count_++) % queue_.size()] = operation;
  }
  not_empty_.notify_one();
}

void LaneQueue::work() {
  while (true) {
    CommOperation operation;
    {
      const MutexLock lock(mutex_);
      not_empty_.wait(mutex_, [this] { return count_ > 0 || stop_; });
      if (count_ == 0) return;
      operation = queue_[first_];
      first_ = (first_ + 1) % queue_.size();
      --count_;
    }
    not_full_.notify_one();
    runner_.run(operation);
  }
}

}  // namespace terrace
