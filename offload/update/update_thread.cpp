#include <terrace/offload/update/update_thread.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/scheduling.h>

namespace terrace {

UpdateThread::UpdateThread(uint32_t chunk_count, OptimizerPipeline& pipeline, UpdateProgress& progress,
                           std::unique_ptr<io::Engine> engine, const Workers& workers, StepWatch& watch)
    : pipeline_(pipeline),
      progress_(progress),
      engine_(std::move(engine)),
      workers_(workers.beside()),
      watch_(watch) {
  added_.reserve(chunk_count);
  thread_ = std::thread([this] { work(); });
}

UpdateThread::~UpdateThread() {
  close();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  news_.notify_all();
  thread_.join();
}

void UpdateThread::begin(bool in_order) {
  TERRACE_ASSERT(!busy_, "one update at a time");
  busy_ = true;
  {
    const MutexLock lock(mutex_);
    added_.clear();
    may_change_ = closed_ = false;
    in_order_ = in_order;
    running_ = true;
  }
  news_.notify_all();
}

void UpdateThread::allow(const UpdateConstants& constants) {
  {
    const MutexLock lock(mutex_);
    constants_ = constants;
    may_change_ = true;
  }
  news_.notify_all();
}

void UpdateThread::add(ChunkId chunk) {
  {
    const MutexLock lock(mutex_);
    TERRACE_ASSERT(busy_ && !closed_, "chunks are added to an update that is open");
    added_.push_back(chunk);
  }
  news_.notify_all();
}

void UpdateThread::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  news_.notify_all();
}

void UpdateThread::finish() {
  if (!busy_) return;
  close();
  std::exception_ptr failure;
  {
    const MutexLock lock(mutex_);
    if (running_) {
      const WatchedWait wait(watch_,
                             {"the end of an update", {}, TimeCause::update, std::nullopt, nullptr, {}});
      ended_.wait(mutex_, [this] { return !running_; });
    }
    failure = std::exchange(failure_, nullptr);
  }
  busy_ = false;
  if (failure != nullptr) std::rethrow_exception(failure);
}

// --- The thread ---

void UpdateThread::work() {
  const DefaultFloatingPoint environment;
  ask_for_short_slices();  // forward and backward compute all the time, and the drive must not wait for them
  watch_.set_update_thread();
  while (true) {
    bool in_order = false;
    {
      const MutexLock lock(mutex_);
      news_.wait(mutex_, [this] { return running_ || stopping_; });
      if (!running_) break;
      in_order = in_order_;
    }
    run(in_order);
    {
      const MutexLock lock(mutex_);
      running_ = false;
    }
    ended_.notify_all();
  }
  engine_.reset();
}

void UpdateThread::run(bool in_order) {
  taken_ = 0;
  allowed_ = false;
  const UpdateRun beside = {
      .engine = engine_.get(), .workers = &workers_, .blocks_of_a_worker = 1, .in_order = in_order};
  complete_rest(pipeline_.run(beside, [this] { update(); }));
}

void UpdateThread::update() {
  while (true) {
    const bool closed = take_news();
    if (pipeline_.advance()) continue;
    const MutexLock lock(mutex_);
    if (has_news()) continue;
    if (closed) return;
    news_.wait(mutex_, [this] { return has_news() || closed_; });
  }
}

bool UpdateThread::has_news() const {
  return taken_ < added_.size() || allowed_ != may_change_;
}

bool UpdateThread::take_news() {
  const MutexLock lock(mutex_);
  if (may_change_ && !allowed_) {
    pipeline_.allow(constants_);
    allowed_ = true;
  }
  for (; taken_ < added_.size(); ++taken_) pipeline_.add(added_[taken_]);
  return closed_;
}

// Completes the chunks that a failure left undone, or an update that was never allowed. Nobody waits for them
// before the last chunk is added.
void UpdateThread::complete_rest(const std::exception_ptr& failure) {
  const MutexLock lock(mutex_);
  news_.wait(mutex_, [this] { return closed_; });
  for (const ChunkId chunk : added_) {
    if (!progress_.updated(chunk).done()) progress_.complete(chunk, failure);
  }
  failure_ = failure;
}

}  // namespace terrace
