#include <terrace/memory/device/copy_stream.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>

namespace terrace {

CopyStream::CopyStream(CopyStreamOptions options) : options_(options), queue_(options.queue_depth) {
  TERRACE_ASSERT(options.queue_depth > 0, "a copy stream holds at least one task");
  TERRACE_ASSERT(options.engine == nullptr || options.link_bytes_per_second == 0, "an engine is not paced");
  if (options.engine != nullptr && options.engine->depth() > 1) {
    started_.resize(options.engine->depth());
    finisher_ = std::thread([this] { run_finisher(); });
  }
  thread_ = std::thread([this] { run(); });
}

CopyStream::~CopyStream() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_one();
  thread_.join();
  if (!finisher_.joinable()) return;
  {
    const MutexLock lock(started_mutex_);
    no_more_ = true;
  }
  started_changed_.notify_all();
  finisher_.join();
}

void CopyStream::enqueue(const CopyTask& task) {
  TERRACE_ASSERT(task.done != nullptr && !task.done->done(), "a copy completes an event that was begun");
  TERRACE_ASSERT(task.after != task.done, "a copy cannot wait for itself");
  TERRACE_ASSERT(task.destination != nullptr || task.bytes == 0,
                 "a copy of " + std::to_string(task.bytes) + " bytes has no destination");
  bool is_here = false;
  {
    const MutexLock lock(mutex_);
    is_here = is_for_caller(task);
    if (is_here) {
      is_running_ = true;
    } else {
      not_full_.wait(mutex_, [this] { return count_ < queue_.size(); });
      queue_[(first_ + count_) % queue_.size()] = task;
      ++count_;
    }
  }
  if (is_here) {
    Started started = start(task, 0);
    finish(started, 0);
    const MutexLock lock(mutex_);
    is_running_ = false;
    if (count_ == 0)
      return;  // else tasks came meanwhile, and the stream's thread waits for the end of this one
  }
  not_empty_.notify_one();
}

bool CopyStream::is_for_caller(const CopyTask& task) const {
  return options_.caller_makes_small_copies && options_.engine == nullptr &&
         options_.link_bytes_per_second == 0 && !is_running_ && count_ == 0 &&
         task.bytes <= kCopiedByCaller && (task.after == nullptr || task.after->done());
}

void CopyStream::run() {
  bool is_mine = false;  // is_running_ was set here
  while (true) {
    CopyTask task;
    {
      const MutexLock lock(mutex_);
      if (is_mine) is_running_ = false;
      not_empty_.wait(mutex_, [this] { return !is_running_ && (count_ > 0 || stop_); });
      if (count_ == 0) return;
      task = queue_[first_];
      first_ = (first_ + 1) % queue_.size();
      --count_;
      is_running_ = is_mine = true;
    }
    not_full_.notify_one();
    if (finisher_.joinable()) {
      hand_to_finisher(task);
    } else {
      Started started = start(task, 0);
      finish(started, 0);
    }
  }
}

CopyStream::Started CopyStream::start(const CopyTask& task, uint32_t place) noexcept {
  Started started;
  started.task = task;
  if (task.after != nullptr) {
    task.after->wait_done();
    started.failure = task.after->failure();
  }
  if (started.failure != nullptr && options_.engine != nullptr) options_.engine->skip(task);
  if (started.failure != nullptr || (task.bytes == 0 && options_.engine == nullptr)) return started;
  started.begun_ns = SteadyClock().now_ns();
  if (task.note.observer != nullptr) started.noted_ns = task.note.observer->now_ns();
  if (options_.engine != nullptr) {
    started.failure = options_.engine->start(task, place);
    started.in_engine = started.failure == nullptr;
  } else {
    std::memcpy(task.destination, task.source, task.bytes);
    pace(task.bytes);
  }
  return started;
}

void CopyStream::finish(Started& started, uint32_t place) noexcept {
  const CopyTask& task = started.task;
  if (started.in_engine) started.failure = options_.engine->finish(task, place);
  const uint64_t end_ns = SteadyClock().now_ns();
  if (started.failure == nullptr && task.bytes > 0) {
    busy_ns_.fetch_add(end_ns - std::max(started.begun_ns, last_end_ns_), std::memory_order_release);
    copied_bytes_.fetch_add(task.bytes, std::memory_order_release);
    if (CopyObserver* const observer = task.note.observer; observer != nullptr) {
      const uint64_t free_at_ns = observer == last_observer_ ? last_noted_end_ns_ : 0;
      observer->copied(task.note, task.bytes, std::max(started.noted_ns, free_at_ns));
      last_observer_ = observer;
      last_noted_end_ns_ = observer->now_ns();
    }
  }
  last_end_ns_ = end_ns;
  if (task.in_flight != nullptr) task.in_flight->fetch_sub(1, std::memory_order_release);
  task.done->complete_one(std::move(started.failure));
}

void CopyStream::hand_to_finisher(const CopyTask& task) {
  uint64_t number;
  {
    const MutexLock lock(started_mutex_);
    started_changed_.wait(started_mutex_,
                          [this] { return started_count_ - finished_count_ < started_.size(); });
    number = started_count_;
  }
  const auto place = static_cast<uint32_t>(number % started_.size());
  started_[place] = start(task, place);
  {
    const MutexLock lock(started_mutex_);
    ++started_count_;
  }
  started_changed_.notify_all();
}

void CopyStream::run_finisher() {
  for (uint64_t number = 0;; ++number) {
    {
      const MutexLock lock(started_mutex_);
      started_changed_.wait(started_mutex_, [&] { return started_count_ > number || no_more_; });
      if (started_count_ == number) return;
    }
    const auto place = static_cast<uint32_t>(number % started_.size());
    finish(started_[place], place);
    {
      const MutexLock lock(started_mutex_);
      finished_count_ = number + 1;
    }
    started_changed_.notify_all();
  }
}

// The link is busy for bytes / rate, counted from when it was last free, or from now if it idled.
void CopyStream::pace(uint64_t bytes) {
  if (options_.link_bytes_per_second == 0) return;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.link_bytes_per_second);
  const auto busy =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  link_free_at_ = std::max(link_free_at_, std::chrono::steady_clock::now()) + busy;
  std::this_thread::sleep_until(link_free_at_);
}

}  // namespace terrace
