// IoThread: one engine on a thread of its own, for work that must go on while every other thread computes.
// Any thread submits; callbacks run on the I/O thread and must be short, since nothing is submitted or
// completed meanwhile.
//
// Sleeping: with nothing in flight the thread waits on a condition variable. With something in flight it
// blocks in Engine::wait(1), where a completion ends the sleep, and so does Engine::wake(), called by a
// submit() that brings something the engine has room for. With io_uring, wake() writes an eventfd that the
// ring itself polls, so both kinds of news arrive in the one completion queue: no time-outs, no busy loop, no
// second thread.
//
// Lock order: mutex_ is the only lock and no engine call is made under it, wake() apart, which never blocks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/mutex.h>

namespace terrace::io {

struct IoThreadOptions {
  uint32_t queue_count = 1024;  // requests of each priority that may wait for the engine
  // For an engine whose requests take no time, such as that of a plan: there is no thread. Requests are over
  // when submit() returns, and their callbacks have run on the calling thread.
  bool without_thread = false;
};

class IoThread {
 public:
  // The engine must not have been used yet.
  explicit IoThread(std::unique_ptr<Engine> engine, const IoThreadOptions& options = {});
  ~IoThread();  // finishes everything that was submitted; no other thread may submit any more
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Thread-safe. Request::priority is replaced by `priority`. Critical requests go to the engine before
  // background ones, and their pieces overtake those of background requests that are partly started; requests
  // of one priority are started in order. Blocks while the queue of its priority is full, except on the I/O
  // thread: a callback submits to the engine directly (see Engine::submit).
  void submit(const Request& request, Priority priority);

  // Blocks until nothing is queued or in flight. Requests submitted meanwhile by other threads are waited for
  // as well. Thread-safe; not to be called from a callback.
  void drain();

  // These run the engine's functions of the same names on the I/O thread. Thread-safe; not to be called from
  // a callback.
  bool register_buffer(std::span<std::byte> memory);
  void unregister_buffer(std::span<std::byte> memory);
  bool register_file(int fd);
  void unregister_file(int fd);
  std::string registration_refusal();
  EngineStats stats();

  EngineKind kind() const { return engine_->kind(); }
  const EngineOptions& options() const { return engine_->options(); }

 private:
  // A first-in first-out queue of fixed capacity.
  class Queue {
   public:
    explicit Queue(size_t capacity) : requests_(capacity) {}
    bool empty() const { return count_ == 0; }
    bool full() const { return count_ == requests_.size(); }
    void push(const Request& request);
    Request pop();

   private:
    std::vector<Request> requests_;
    size_t first_ = 0;
    size_t count_ = 0;
  };
  struct Call {
    FunctionRef<void(Engine&)> body;
    bool done;
  };

  void complete_here(const Request& request);
  bool on_io_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  void call(FunctionRef<void(Engine&)> body);
  void work();
  bool has_news() const TERRACE_REQUIRES(mutex_);
  void take_batch() TERRACE_REQUIRES(mutex_);
  void run_call() TERRACE_REQUIRES(mutex_);
  void go_round();

  std::unique_ptr<Engine> engine_;  // destroyed by the I/O thread
  std::vector<Request> batch_;      // used by the I/O thread alone
  const bool without_thread_;
  std::recursive_mutex here_;  // without a thread: whose holder has the engine
  bool is_completing_ = false;

  mutable Mutex mutex_;
  std::condition_variable_any work_added_;  // for the I/O thread
  std::condition_variable_any room_made_;   // for submit()
  std::condition_variable_any went_idle_;   // for drain()
  std::condition_variable_any call_done_;
  Queue critical_ TERRACE_GUARDED_BY(mutex_);
  Queue background_ TERRACE_GUARDED_BY(mutex_);
  Call* call_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  uint64_t in_engine_ TERRACE_GUARDED_BY(mutex_) = 0;  // requests taken from the queues and not completed
  bool sleeps_in_engine_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::io
