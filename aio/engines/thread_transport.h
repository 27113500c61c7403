// ThreadTransport: a pool of threads that call pread and pwrite; it works wherever files do. It must never
// run a callback: its threads only move bytes.
#pragma once

#include <condition_variable>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <terrace/aio/engines/transport.h>
#include <terrace/base/mutex.h>

namespace terrace::io {

// FileCalls: the threads call these in place of pread and pwrite, for memory that those do not reach.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  // Returns the bytes moved or a negated error, as in PieceResult. Several threads call it at once; it may
  // wait.
  virtual int64_t move(const Piece& piece) noexcept = 0;
  // These do what Engine's functions of the same names do.
  virtual bool register_file(int fd) = 0;
  virtual void unregister_file(int fd) = 0;
  virtual std::string_view registration_refusal() const = 0;
};

class ThreadTransport final : public Transport {
 public:
  // Null `calls` stand for pread and pwrite. Throws Error(io) when the threads cannot be started.
  ThreadTransport(uint32_t queue_depth, uint32_t thread_count, std::unique_ptr<FileCalls> calls = nullptr);
  ~ThreadTransport() override;
  ThreadTransport(const ThreadTransport&) = delete;
  ThreadTransport& operator=(const ThreadTransport&) = delete;

  EngineKind kind() const override { return EngineKind::threads; }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> memory) override;
  void unregister_buffer(std::span<std::byte> memory) override;
  bool register_file(int fd) override { return calls_ != nullptr && calls_->register_file(fd); }
  void unregister_file(int fd) override;
  std::string_view registration_refusal() const override {
    return calls_ != nullptr ? calls_->registration_refusal()
                             : "the threads engine has no registered buffers and files";
  }
  TransportStats stats() const override { return {}; }

 private:
  void work();
  void stop() noexcept;

  const std::unique_ptr<FileCalls> calls_;
  Mutex mutex_;
  std::condition_variable_any work_added_;
  std::condition_variable_any work_done_;
  // todo_ is a ring and done_ a stack, both of fixed capacity queue_depth: the engine never has more in
  // flight.
  std::vector<Piece> todo_ TERRACE_GUARDED_BY(mutex_);
  size_t todo_first_ TERRACE_GUARDED_BY(mutex_) = 0;
  size_t todo_count_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<PieceResult> done_ TERRACE_GUARDED_BY(mutex_);
  bool woken_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace terrace::io
