#include <sys/eventfd.h>
#include <unistd.h>

#include <terrace/aio/uring_ring.h>
#include <terrace/aio/uring_transport.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <cerrno>
#include <string>

namespace terrace::io {
namespace {

class UringTransport final : public Transport {
 public:
  UringTransport() = default;
  ~UringTransport() override;
  UringTransport(const UringTransport&) = delete;
  UringTransport& operator=(const UringTransport&) = delete;

  // False with the reason in `words`; true with what is missing in `words`.
  bool create(uint32_t queue_depth, std::string& words);

  EngineKind kind() const override { return EngineKind::io_uring; }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> memory) override { return ring_->register_buffer(memory); }
  void unregister_buffer(std::span<std::byte> memory) override { ring_->unregister_buffer(memory); }
  bool register_file(int fd) override { return ring_->register_file(fd); }
  void unregister_file(int fd) override { ring_->unregister_file(fd); }
  std::string_view registration_refusal() const override { return ring_->registration_refusal(); }
  TransportStats stats() const override;

 private:
  void enable();
  void arm_wake();
  void take_wake();

  std::unique_ptr<UringRing> ring_;
  int wake_fd_ = -1;
  uint64_t submit_calls_ = 0;
};

UringTransport::~UringTransport() {
  ring_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

bool UringTransport::create(uint32_t queue_depth, std::string& words) {
  ring_ = UringRing::create(queue_depth + 1, words);  // the extra one waits for wake()
  if (ring_ == nullptr) return false;
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    words = "eventfd: " + system_reason(errno);
    return false;
  }
  return true;
}

void UringTransport::enable() {
  if (ring_->enabled()) return;
  ring_->enable();
  arm_wake();
}

void UringTransport::arm_wake() {
  ring_->add_wake(wake_fd_);
  ring_->submit();
}

void UringTransport::take_wake() {
  uint64_t count;
  const ssize_t taken = read(wake_fd_, &count, sizeof count);
  TERRACE_ASSERT(taken == sizeof count || errno == EAGAIN,
                 "reading the wake eventfd: " + system_reason(errno));
}

void UringTransport::wake() noexcept {
  const uint64_t one = 1;
  const ssize_t written = write(wake_fd_, &one, sizeof one);
  // EAGAIN: 2^64 - 2 wakes are pending, and one is enough.
  TERRACE_ASSERT(written == sizeof one || errno == EAGAIN,
                 "writing the wake eventfd: " + system_reason(errno));
}

void UringTransport::start(std::span<const Piece> pieces) {
  enable();
  for (const Piece& piece : pieces) ring_->add(piece);
  submit_calls_ += ring_->submit();
}

Reaped UringTransport::reap(std::span<PieceResult> results, bool block) {
  enable();
  Reaped reaped{0, false};
  while (reaped.count < results.size()) {
    const bool must_wait = block && reaped.count == 0 && !reaped.woken;
    UringRing::Taken taken;
    if (!ring_->take(taken, must_wait)) {
      if (must_wait) continue;
      break;
    }
    if (taken.id == UringRing::kWakeId) {
      reaped.woken = true;
    } else {
      results[reaped.count++] = PieceResult{static_cast<uint32_t>(taken.id), taken.result};
    }
  }
  if (reaped.woken) {
    take_wake();
    arm_wake();
  }
  return reaped;
}

TransportStats UringTransport::stats() const {
  return {ring_->registered_pieces(), ring_->registered_file_pieces(), submit_calls_};
}

}  // namespace

std::unique_ptr<Transport> make_uring_transport(uint32_t queue_depth, std::string& words) {
  auto transport = std::make_unique<UringTransport>();
  if (!transport->create(queue_depth, words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
