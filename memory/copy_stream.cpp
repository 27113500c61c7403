#include <terrace/memory/copy_stream.h>

#include <cstring>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>

namespace terrace {

CopyStream::CopyStream(CopyStreamOptions options) : options_(options), queue_(options.queue_depth) {
  TERRACE_ASSERT(options.queue_depth > 0, "a copy stream holds at least one task");
  thread_ = std::thread([this] { run(); });
}

CopyStream::~CopyStream() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_one();
  thread_.join();
}

void CopyStream::enqueue(const CopyTask& task) {
  TERRACE_ASSERT(task.done != nullptr && !task.done->done(), "a copy completes an event that was begun");
  TERRACE_ASSERT(task.after != task.done, "a copy cannot wait for itself");
  TERRACE_ASSERT(task.destination != nullptr || task.bytes == 0,
                 "a copy of " + std::to_string(task.bytes) + " bytes has no destination");
  {
    const MutexLock lock(mutex_);
    not_full_.wait(mutex_, [this] { return count_ < queue_.size(); });
    queue_[(first_ + count_) % queue_.size()] = task;
    ++count_;
  }
  not_empty_.notify_one();
}

void CopyStream::run() {
  while (true) {
    CopyTask task;
    {
      const MutexLock lock(mutex_);
      not_empty_.wait(mutex_, [this] { return count_ > 0 || stop_; });
      if (count_ == 0) return;
      task = queue_[first_];
      first_ = (first_ + 1) % queue_.size();
      --count_;
    }
    not_full_.notify_one();
    execute(task);
  }
}

void CopyStream::execute(const CopyTask& task) noexcept {
  std::exception_ptr failure;
  if (task.after != nullptr) {
    task.after->wait_done();
    failure = task.after->failure();
  }
  if (failure == nullptr && task.bytes > 0) {
    if (task.source == nullptr) {
      std::memset(task.destination, 0, task.bytes);
    } else {
      const SteadyClock clock;
      const uint64_t begun_ns = clock.now_ns();
      const uint64_t noted_ns = task.note.observer != nullptr ? task.note.observer->now_ns() : 0;
      std::memcpy(task.destination, task.source, task.bytes);
      pace(task.bytes);
      busy_ns_.fetch_add(clock.now_ns() - begun_ns, std::memory_order_release);
      copied_bytes_.fetch_add(task.bytes, std::memory_order_release);
      if (task.note.observer != nullptr) task.note.observer->copied(task.note, task.bytes, noted_ns);
    }
  }
  if (task.in_flight != nullptr) task.in_flight->fetch_sub(1, std::memory_order_release);
  task.done->complete_one(std::move(failure));
}

// The link is busy for bytes / rate from when it was free, or from now if it idled.
void CopyStream::pace(uint64_t bytes) {
  if (options_.link_bytes_per_second == 0) return;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.link_bytes_per_second);
  const auto busy =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  link_free_at_ = std::max(link_free_at_, std::chrono::steady_clock::now()) + busy;
  std::this_thread::sleep_until(link_free_at_);
}

}  // namespace terrace
