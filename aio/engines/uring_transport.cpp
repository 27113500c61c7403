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
  UringTransport(const EngineOptions& options, Log& log)
      : options_(options), log_(log), started_by_(options.queue_depth), ledger_(options.queue_depth) {}
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
  void create_main_ring(Reason& words);
  void create_polling_ring();
  void arm_wake();
  bool take_wake();
  int ring_failure() const;
  bool stop_where_a_ring_failed();
  bool may_poll(int fd) const;
  UringRing::Registered add_polled(const Piece& piece);
  size_t take_polled(std::span<PieceResult> results);
  Reaped take_main(std::span<PieceResult> results, bool block);
  void stop_polling(const Piece& piece);
  PieceResult answer(uint32_t id, int32_t result);

  const EngineOptions options_;
  Log& log_;
  std::unique_ptr<UringRing> ring_;     // by interrupt or by kernel thread: has the wake entry
  std::unique_ptr<UringRing> polling_;  // null without io_uring_iopoll
  std::vector<Piece> polled_pieces_;    // by id: to be started again where polling is refused
  std::vector<bool> refuses_polling_;   // by descriptor
  uint32_t polled_in_flight_ = 0;
  std::vector<uint64_t> started_by_;  // by id: thread_number() of who started the piece
  PieceLedger ledger_;
  int stopped_ = 0;  // engine_stopped() of what ended the rings, which are gone then
  int wake_fd_ = -1;
  std::atomic<bool> wake_was_lost_{false};  // the eventfd could not be written
  std::string refusal_;
  TransportStats stats_;
};

UringTransport::~UringTransport() {
  polling_.reset();
  ring_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

bool UringTransport::create(Reason& words) {
  create_main_ring(words);
  if (ring_ == nullptr) return false;
  if (options_.io_uring_iopoll) create_polling_ring();
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    words = "eventfd: " + system_reason(errno);
    return false;
  }
  arm_wake();
  return true;
}

void UringTransport::create_main_ring(Reason& words) {
  const uint32_t entries = options_.queue_depth + 1;  // one waits for wake()
  if (options_.io_uring_sqpoll) {
    Reason reason;
    ring_ = UringRing::create(RingMode::by_kernel_thread, entries, reason);
    if (ring_ != nullptr) return;
    log_.warning_once("io_uring_sqpoll is left off: " + reason.text);
  }
  ring_ = UringRing::create(RingMode::by_interrupt, entries, words);
}

void UringTransport::create_polling_ring() {
  Reason reason;
  polling_ = UringRing::create(RingMode::by_polling, options_.queue_depth, reason);
  if (polling_ == nullptr) {
    log_.warning_once("io_uring_iopoll is left off: " + reason.text);
    return;
  }
  polled_pieces_.resize(options_.queue_depth);
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

int UringTransport::ring_failure() const {
  if (ring_->failure() != 0 || polling_ == nullptr) return ring_->failure();
  return polling_->failure();
}

// Once a ring has failed: both are ended, and every piece that has no answer is refused. What the rings had
// finished and nobody had taken is among them; its bytes may have been moved.
bool UringTransport::stop_where_a_ring_failed() {
  if (stopped_ != 0) return true;
  const int failure = ring_failure();
  if (failure == 0) return false;
  stopped_ = engine_stopped(failure);
  refusal_ = "io_uring_enter: " + system_reason(failure);
  ring_->retire();
  if (polling_ != nullptr) polling_->retire();
  ring_.reset();
  polling_.reset();
  ledger_.refuse_all(-stopped_);
  return true;
}

bool UringTransport::may_poll(int fd) const {
  if (polling_ == nullptr) return false;
  const auto index = static_cast<size_t>(fd);
  return index >= refuses_polling_.size() || !refuses_polling_[index];
}

UringRing::Registered UringTransport::add_polled(const Piece& piece) {
  polled_pieces_[piece.id] = piece;
  ++polled_in_flight_;
  return polling_->add(piece);
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
  uint32_t polled = 0;
  for (const Piece& piece : pieces) {
    const bool poll = may_poll(piece.fd);
    const UringRing::Registered through = poll ? add_polled(piece) : ring_->add(piece);
    polled += poll ? 1 : 0;
    stats_.registered_pieces += through.memory ? 1 : 0;
    stats_.registered_file_pieces += through.file ? 1 : 0;
  }
  if (polled < pieces.size()) stats_.submit_calls += ring_->submit();
  if (polled > 0) stats_.submit_calls += polling_->submit();
  stop_where_a_ring_failed();
}

// From now on pieces of this file, and this one first, go the other way.
void UringTransport::stop_polling(const Piece& piece) {
  const auto index = static_cast<size_t>(piece.fd);
  if (refuses_polling_.size() <= index) refuses_polling_.resize(index + 1);
  refuses_polling_[index] = true;
  log_.warning_once(
      "io_uring_iopoll has no effect on some files: " + system_reason(EOPNOTSUPP).text +
      ". Polling takes a device with queues for it (of nvme: the module's poll_queues) and direct I/O");
  ring_->add(piece);
  stats_.submit_calls += ring_->submit();
}

// What the kernel does for a thread that has ended is given up with ECANCELED, or with EFAULT where it had to
// go on with the thread's memory: to be started again, by a thread that is there.
PieceResult UringTransport::answer(uint32_t id, int32_t result) {
  ledger_.answer(id);
  const bool given_up = result == -ECANCELED || (result == -EFAULT && started_by_[id] != thread_number());
  return {id, given_up ? -EINTR : result};
}

size_t UringTransport::take_polled(std::span<PieceResult> results) {
  size_t count = 0;
  UringRing::Taken taken;
  while (polled_in_flight_ > 0 && count < results.size() && polling_->take(taken, false)) {
    --polled_in_flight_;
    const auto id = static_cast<uint32_t>(taken.id);
    if (taken.result == -EOPNOTSUPP) {
      stop_polling(polled_pieces_[id]);
    } else {
      results[count++] = answer(id, taken.result);
    }
  }
  return count;
}

Reaped UringTransport::take_main(std::span<PieceResult> results, bool block) {
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

// While the device has to be asked, both rings are looked at in turn; otherwise the thread sleeps in the one
// that completions and wakes interrupt.
Reaped UringTransport::reap(std::span<PieceResult> results, bool block) {
  for (;;) {
    if (stop_where_a_ring_failed()) return {ledger_.take_refused(results), take_wake()};
    const size_t polled = take_polled(results);
    const bool sleep = block && polled == 0 && polled_in_flight_ == 0;
    Reaped reaped = take_main(results.subspan(polled), sleep);
    reaped.count += polled;
    reaped.woken = wake_was_lost_.exchange(false) || reaped.woken;
    if (reaped.count > 0 || reaped.woken || (!block && ring_failure() == 0)) return reaped;
  }
}

// In both rings or in none.
bool UringTransport::register_buffer(std::span<std::byte> memory) {
  if (stopped_ != 0) return false;
  if (!ring_->register_buffer(memory)) {
    refusal_ = ring_->registration_refusal();
    return false;
  }
  if (polling_ == nullptr || polling_->register_buffer(memory)) return true;
  refusal_ = polling_->registration_refusal();
  ring_->unregister_buffer(memory);
  return false;
}

// What was registered with rings that have ended is so no more.
void UringTransport::unregister_buffer(std::span<std::byte> memory) {
  if (stopped_ != 0) return;
  ring_->unregister_buffer(memory);
  if (polling_ != nullptr) polling_->unregister_buffer(memory);
}

// Another file of the same number may have refused polling.
bool UringTransport::register_file(int fd) {
  if (stopped_ != 0) return false;
  if (!ring_->register_file(fd)) {
    refusal_ = ring_->registration_refusal();
    return false;
  }
  if (polling_ == nullptr) return true;
  if (static_cast<size_t>(fd) < refuses_polling_.size()) refuses_polling_[static_cast<size_t>(fd)] = false;
  if (polling_->register_file(fd)) return true;
  refusal_ = polling_->registration_refusal();
  ring_->unregister_file(fd);
  return false;
}

void UringTransport::unregister_file(int fd) {
  if (stopped_ != 0) return;
  ring_->unregister_file(fd);
  if (polling_ != nullptr) polling_->unregister_file(fd);
}

}  // namespace

std::unique_ptr<Transport> make_uring_transport(const EngineOptions& options, Log& log, Reason& words) {
  auto transport = std::make_unique<UringTransport>(options, log);
  if (!transport->create(words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
