#include <terrace/aio/io_thread.h>

#include <string>
#include <system_error>
#include <utility>

#include <terrace/aio/thread_identity.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

// Requests handed to the engine in one batch.
constexpr size_t kBatchCount = 64;

}  // namespace

void IoThread::Queue::push(const Request& request) {
  TERRACE_ASSERT(!full(), "a request was pushed to a full queue");
  requests_[(first_ + count_) % requests_.size()] = request;
  ++count_;
}

Request IoThread::Queue::pop() {
  TERRACE_ASSERT(!empty(), "a request was popped from an empty queue");
  const Request request = requests_[first_];
  first_ = (first_ + 1) % requests_.size();
  --count_;
  return request;
}

IoThread::IoThread(std::unique_ptr<Engine> engine, const IoThreadOptions& options)
    : engine_(std::move(engine)),
      without_thread_(options.without_thread),
      critical_(options.queue_count),
      background_(options.queue_count) {
  TERRACE_ASSERT(options.queue_count > 0, "a queue has room for at least one request");
  if (without_thread_) return;
  batch_.reserve(kBatchCount);
  try {
    // Held until thread_ is assigned: the new thread asks for it, in on_io_thread().
    const MutexLock lock(mutex_);
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::io, {"cannot start the I/O thread", "", system_reason(error.code().value()),
                                "raise `ulimit -u`"});
  }
}

IoThread::~IoThread() {
  if (without_thread_) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    if (std::exchange(sleeps_in_engine_, false)) engine_->wake();
  }
  work_added_.notify_one();
  thread_.join();
}

void IoThread::submit(const Request& request, Priority priority) {
  Request queued = request;
  queued.priority = priority;
  if (without_thread_) return complete_here(queued);
  if (on_io_thread()) {
    engine_->submit({&queued, 1});
    return;
  }
  {
    const MutexLock lock(mutex_);
    Queue& queue = priority == Priority::critical ? critical_ : background_;
    while (queue.full()) room_made_.wait(mutex_);
    queue.push(queued);
    if (sleeps_in_engine_ && has_news()) {
      sleeps_in_engine_ = false;
      engine_->wake();
    }
  }
  work_added_.notify_one();
}

// What a callback submits is accepted, and completed by the round that runs the callback.
void IoThread::complete_here(const Request& request) {
  const std::lock_guard lock(here_);
  engine_->submit({&request, 1});
  if (is_completing_) return;
  is_completing_ = true;
  while (engine_->in_flight() > 0) engine_->wait(1);
  is_completing_ = false;
}

void IoThread::drain() {
  if (without_thread_) return;
  TERRACE_ASSERT(!on_io_thread(), "drain() was called from a callback");
  const MutexLock lock(mutex_);
  while (!critical_.empty() || !background_.empty() || in_engine_ > 0) went_idle_.wait(mutex_);
}

// One call at a time; the I/O thread runs it between two rounds.
void IoThread::call(FunctionRef<void(Engine&)> body) {
  if (without_thread_) {
    const std::lock_guard lock(here_);
    return body(*engine_);
  }
  TERRACE_ASSERT(!on_io_thread(), "the I/O thread was asked to wait for itself");
  Call own{body, false};
  const MutexLock lock(mutex_);
  while (call_ != nullptr) call_done_.wait(mutex_);
  call_ = &own;
  if (std::exchange(sleeps_in_engine_, false)) engine_->wake();
  work_added_.notify_one();
  while (!own.done) call_done_.wait(mutex_);
}

bool IoThread::register_buffer(std::span<std::byte> memory) {
  bool accepted = false;
  call([&](Engine& engine) { accepted = engine.register_buffer(memory); });
  return accepted;
}

void IoThread::unregister_buffer(std::span<std::byte> memory) {
  call([&](Engine& engine) { engine.unregister_buffer(memory); });
}

bool IoThread::register_file(int fd) {
  bool accepted = false;
  call([&](Engine& engine) { accepted = engine.register_file(fd); });
  return accepted;
}

void IoThread::unregister_file(int fd) {
  call([&](Engine& engine) { engine.unregister_file(fd); });
}

std::string IoThread::registration_refusal() {
  std::string reason;
  call([&](Engine& engine) { reason = engine.registration_refusal(); });
  return reason;
}

EngineStats IoThread::stats() {
  EngineStats stats;
  call([&](Engine& engine) { stats = engine.stats(); });
  return stats;
}

// Whether something is queued that the engine should have now. Background requests are held back once the
// engine has enough to keep its queue full, so that a critical one finds room.
bool IoThread::has_news() const {
  const EngineOptions& limits = engine_->options();
  if (call_ != nullptr) return true;
  if (!critical_.empty()) return in_engine_ < uint64_t{limits.queue_depth} + limits.backlog_count;
  return !background_.empty() && in_engine_ < limits.queue_depth;
}

void IoThread::take_batch() {
  const EngineOptions& limits = engine_->options();
  while (batch_.size() < kBatchCount && !critical_.empty() &&
         in_engine_ < uint64_t{limits.queue_depth} + limits.backlog_count) {
    batch_.push_back(critical_.pop());
    ++in_engine_;
  }
  while (batch_.size() < kBatchCount && critical_.empty() && !background_.empty() &&
         in_engine_ < limits.queue_depth) {
    batch_.push_back(background_.pop());
    ++in_engine_;
  }
}

void IoThread::run_call() {
  if (call_ == nullptr) return;
  Call& current = *call_;
  mutex_.unlock();
  current.body(*engine_);
  mutex_.lock();
  current.done = true;
  call_ = nullptr;
  call_done_.notify_all();
}

// Submits what was taken, and completes: blocking when there is nothing else to do.
void IoThread::go_round() {
  if (!batch_.empty()) {
    engine_->submit(batch_);
    batch_.clear();
  }
  bool may_sleep;
  {
    const MutexLock lock(mutex_);
    in_engine_ = engine_->in_flight();
    may_sleep = in_engine_ > 0 && !has_news();
    sleeps_in_engine_ = may_sleep;
  }
  if (may_sleep) {
    engine_->wait(1);
  } else {
    engine_->poll();
  }
}

void IoThread::work() {
  become_background_thread("terrace-io");
  const MutexLock lock(mutex_);
  for (;;) {
    while (in_engine_ == 0 && critical_.empty() && background_.empty() && call_ == nullptr && !stopping_) {
      work_added_.wait(mutex_);
    }
    if (in_engine_ == 0 && critical_.empty() && background_.empty() && call_ == nullptr) break;
    take_batch();
    run_call();
    mutex_.unlock();
    if (!batch_.empty()) room_made_.notify_all();
    go_round();
    mutex_.lock();
    sleeps_in_engine_ = false;
    in_engine_ = engine_->in_flight();
    if (in_engine_ == 0 && critical_.empty() && background_.empty()) went_idle_.notify_all();
  }
  engine_.reset();
}

}  // namespace terrace::io
