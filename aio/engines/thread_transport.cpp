#include <terrace/aio/engines/thread_transport.h>

#include <unistd.h>

#include <terrace/aio/thread_identity.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace terrace::io {
namespace {

int64_t move_bytes(const Piece& piece) {
  const auto offset = static_cast<off_t>(piece.offset);
  const ssize_t moved = piece.kind == OpKind::read ? pread(piece.fd, piece.data, piece.bytes, offset)
                                                   : pwrite(piece.fd, piece.data, piece.bytes, offset);
  return moved >= 0 ? moved : -static_cast<int64_t>(errno);
}

}  // namespace

ThreadTransport::ThreadTransport(uint32_t queue_depth, uint32_t thread_count,
                                 std::unique_ptr<FileCalls> calls)
    : calls_(std::move(calls)), todo_(queue_depth) {
  done_.reserve(queue_depth);
  threads_.reserve(thread_count);
  try {
    for (uint32_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(ErrorKind::io,
                {"cannot start the I/O threads", std::to_string(thread_count),
                 system_reason(error.code().value()), "raise `ulimit -u` or ask for fewer threads"});
  }
}

ThreadTransport::~ThreadTransport() {
  stop();
}

void ThreadTransport::stop() noexcept {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_added_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTransport::start(std::span<const Piece> pieces) {
  {
    const MutexLock lock(mutex_);
    for (const Piece& piece : pieces) {
      TERRACE_ASSERT(todo_count_ < todo_.size(), "more pieces were started than the queue depth");
      todo_[(todo_first_ + todo_count_) % todo_.size()] = piece;
      ++todo_count_;
    }
  }
  if (pieces.size() == 1) {
    work_added_.notify_one();
  } else {
    work_added_.notify_all();
  }
}

Reaped ThreadTransport::reap(std::span<PieceResult> results, bool block) {
  const MutexLock lock(mutex_);
  while (block && done_.empty() && !woken_) work_done_.wait(mutex_);
  const size_t count = std::min(results.size(), done_.size());
  std::copy_n(done_.end() - static_cast<std::ptrdiff_t>(count), count, results.begin());
  done_.resize(done_.size() - count);
  const bool woken = woken_;
  woken_ = false;
  return Reaped{count, woken};
}

void ThreadTransport::wake() noexcept {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  work_done_.notify_one();
}

bool ThreadTransport::register_buffer(std::span<std::byte> /*memory*/) {
  return false;
}

void ThreadTransport::unregister_buffer(std::span<std::byte> /*memory*/) {
  TERRACE_ASSERT(false, "no buffer was registered: register_buffer() returned false");
}

void ThreadTransport::unregister_file(int fd) {
  TERRACE_ASSERT(calls_ != nullptr, "no file was registered: register_file() returned false");
  calls_->unregister_file(fd);
}

void ThreadTransport::work() {
  become_background_thread("terrace-pread");
  for (;;) {
    Piece piece;
    {
      const MutexLock lock(mutex_);
      while (todo_count_ == 0 && !stopping_) work_added_.wait(mutex_);
      if (todo_count_ == 0) return;
      piece = todo_[todo_first_];
      todo_first_ = (todo_first_ + 1) % todo_.size();
      --todo_count_;
    }
    const int64_t result = calls_ != nullptr ? calls_->move(piece) : move_bytes(piece);
    {
      const MutexLock lock(mutex_);
      done_.push_back(PieceResult{piece.id, result});
    }
    work_done_.notify_one();
  }
}

}  // namespace terrace::io
