#include <terrace/aio/engines/uring_transport.h>

#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <terrace/aio/engines/piece_ledger.h>
#include <terrace/aio/engines/uring_ring.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

namespace terrace::io {
namespace {

// The number of the calling thread. No two threads of a process have the same, not even one after the other.
uint64_t thread_number() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t number = ++next;
  return number;
}

class UringTransport final : public Transport {
 public:
  explicit UringTransport(uint32_t queue_depth)
      : queue_depth_(queue_depth), started_by_(queue_depth), ledger_(queue_depth) {}
  ~UringTransport() override;
  UringTransport(const UringTransport&) = delete;
  UringTransport& operator=(const UringTransport&) = delete;

  // False with the reason in `words`.
  bool create(Reason& words);

  EngineKind kind() const override { return EngineKind::io_uring; }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> memory) override;
  void unregister_buffer(std::span<std::byte> memory) override;
  bool register_file(int fd) override;
  void unregister_file(int fd) override;
  std::string_view registration_refusal() const override { return refusal_; }
  TransportStats stats() const override { return stats_; }

 private:
  void arm_wake();
  bool take_wake();
  bool stop_where_the_ring_failed();
  Reaped take(std::span<PieceResult> results, bool block);
  PieceResult answer(uint32_t id, int32_t result);

  const uint32_t queue_depth_;
  std::unique_ptr<UringRing> ring_;
  std::vector<uint64_t> started_by_;  // by id: thread_number() of who started the piece
  PieceLedger ledger_;
  int stopped_ = 0;  // engine_stopped() of what ended the ring, which is gone then
  int wake_fd_ = -1;
  std::atomic<bool> wake_was_lost_{false};  // the eventfd could not be written
  std::string refusal_;
  TransportStats stats_;
};

UringTransport::~UringTransport() {
  ring_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

bool UringTransport::create(Reason& words) {
  ring_ = UringRing::create(queue_depth_ + 1, words);  // one more waits for wake()
  if (ring_ == nullptr) return false;
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    words = "eventfd: " + system_reason(errno);
    return false;
  }
  arm_wake();
  return true;
}

void UringTransport::arm_wake() {
  ring_->add_wake(wake_fd_);
  ring_->submit();
}

// Whether wake() was called since it was last asked.
bool UringTransport::take_wake() {
  const bool was_lost = wake_was_lost_.exchange(false);
  uint64_t count;
  const ssize_t taken = read(wake_fd_, &count, sizeof count);
  if (taken == sizeof count) return true;
  if (errno != EAGAIN) {  // the ring finds it readable again at once: without a pause that would take a core
    constexpr timespec kPause{0, 1'000'000};
    nanosleep(&kPause, nullptr);
  }
  return was_lost;
}

// EAGAIN: 2^64 - 2 wakes are pending, and one is enough.
void UringTransport::wake() noexcept {
  const uint64_t one = 1;
  const ssize_t written = write(wake_fd_, &one, sizeof one);
  if (written != sizeof one && errno != EAGAIN) wake_was_lost_.store(true);
}

// Once the ring has failed: it is ended, and every piece that has no answer is refused. What the ring had
// finished and nobody had taken is among them; its bytes may have been moved.
bool UringTransport::stop_where_the_ring_failed() {
  if (stopped_ != 0) return true;
  const int failure = ring_->failure();
  if (failure == 0) return false;
  stopped_ = engine_stopped(failure);
  refusal_ = "io_uring_enter: " + system_reason(failure);
  ring_->retire();
  ring_.reset();
  ledger_.refuse_all(-stopped_);
  return true;
}

void UringTransport::start(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    ledger_.start(piece.id);
    started_by_[piece.id] = thread_number();
  }
  if (stopped_ != 0) {
    ledger_.refuse_all(-stopped_);
    return;
  }
  for (const Piece& piece : pieces) {
    const UringRing::Registered through = ring_->add(piece);
    stats_.registered_pieces += through.memory ? 1 : 0;
    stats_.registered_file_pieces += through.file ? 1 : 0;
  }
  stats_.submit_calls += ring_->submit();
  stop_where_the_ring_failed();
}

// What the kernel does for a thread that has ended is given up with ECANCELED, or with EFAULT where it had to
// go on with the thread's memory: to be started again, by a thread that is there.
PieceResult UringTransport::answer(uint32_t id, int32_t result) {
  ledger_.answer(id);
  const bool given_up = result == -ECANCELED || (result == -EFAULT && started_by_[id] != thread_number());
  return {id, given_up ? -EINTR : result};
}

Reaped UringTransport::take(std::span<PieceResult> results, bool block) {
  Reaped reaped{0, false};
  while (reaped.count < results.size()) {
    const bool must_wait = block && reaped.count == 0 && !reaped.woken;
    UringRing::Taken taken;
    if (!ring_->take(taken, must_wait)) {
      if (must_wait && ring_->failure() == 0) continue;
      break;
    }
    if (taken.id == UringRing::kWakeId) {
      reaped.woken = true;
    } else {
      results[reaped.count++] = answer(static_cast<uint32_t>(taken.id), taken.result);
    }
  }
  if (reaped.woken) {
    take_wake();
    arm_wake();
  }
  return reaped;
}

// The thread sleeps in the ring, where completions and wakes arrive.
Reaped UringTransport::reap(std::span<PieceResult> results, bool block) {
  for (;;) {
    if (stop_where_the_ring_failed()) return {ledger_.take_refused(results), take_wake()};
    Reaped reaped = take(results, block);
    reaped.woken = wake_was_lost_.exchange(false) || reaped.woken;
    if (reaped.count > 0 || reaped.woken || (!block && ring_->failure() == 0)) return reaped;
  }
}

bool UringTransport::register_buffer(std::span<std::byte> memory) {
  if (stopped_ != 0) return false;
  if (ring_->register_buffer(memory)) return true;
  refusal_ = ring_->registration_refusal();
  return false;
}

// What was registered with a ring that has ended is so no more.
void UringTransport::unregister_buffer(std::span<std::byte> memory) {
  if (stopped_ == 0) ring_->unregister_buffer(memory);
}

bool UringTransport::register_file(int fd) {
  if (stopped_ != 0) return false;
  if (ring_->register_file(fd)) return true;
  refusal_ = ring_->registration_refusal();
  return false;
}

void UringTransport::unregister_file(int fd) {
  if (stopped_ == 0) ring_->unregister_file(fd);
}

}  // namespace

std::unique_ptr<Transport> make_uring_transport(uint32_t queue_depth, Reason& words) {
  auto transport = std::make_unique<UringTransport>(queue_depth);
  if (!transport->create(words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
