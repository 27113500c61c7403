#include <terrace/aio/engines/libaio_transport.h>

#include <libaio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <terrace/aio/engines/piece_ledger.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

namespace terrace::io {
namespace {

class LibaioTransport final : public Transport {
 public:
  explicit LibaioTransport(uint32_t queue_depth);
  ~LibaioTransport() override;
  LibaioTransport(const LibaioTransport&) = delete;
  LibaioTransport& operator=(const LibaioTransport&) = delete;

  // False with the reason in `words`.
  bool create(Reason& words);

  EngineKind kind() const override { return EngineKind::libaio; }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> /*memory*/) override { return false; }
  void unregister_buffer(std::span<std::byte> /*memory*/) override {
    TERRACE_ASSERT(false, "no buffer was registered: register_buffer() returned false");
  }
  bool register_file(int /*fd*/) override { return false; }
  void unregister_file(int /*fd*/) override {
    TERRACE_ASSERT(false, "no file was registered: register_file() returned false");
  }
  std::string_view registration_refusal() const override {
    return "libaio has no registered buffers and files";
  }
  TransportStats stats() const override { return {.submit_calls = submit_calls_}; }

 private:
  size_t take_events(std::span<PieceResult> results);
  void stop(int error);
  void sleep();

  const uint32_t queue_depth_;
  io_context_t context_ = nullptr;
  int event_fd_ = -1;
  std::atomic<bool> woken_{false};
  std::vector<iocb> blocks_;  // by Piece::id; the kernel reads one only inside io_submit
  std::vector<iocb*> batch_;
  std::vector<io_event> events_;
  PieceLedger ledger_;
  CallPatience patience_;
  int stopped_ = 0;  // engine_stopped() of what ended the context, which is gone then
  uint64_t submit_calls_ = 0;
};

// Of the system-wide limit that io_setup answers with EAGAIN.
std::string system_limit_words() {
  uint64_t used = 0;
  uint64_t most = 0;
  std::ifstream("/proc/sys/fs/aio-nr") >> used;
  std::ifstream("/proc/sys/fs/aio-max-nr") >> most;
  return "; " + std::to_string(used) + " of fs.aio-max-nr = " + std::to_string(most) + " are in use";
}

LibaioTransport::LibaioTransport(uint32_t queue_depth)
    : queue_depth_(queue_depth), blocks_(queue_depth), events_(queue_depth), ledger_(queue_depth) {
  batch_.reserve(queue_depth);
}

LibaioTransport::~LibaioTransport() {
  if (context_ != nullptr) io_destroy(context_);
  if (event_fd_ >= 0) close(event_fd_);
}

bool LibaioTransport::create(Reason& words) {
  const int result = io_setup(static_cast<int>(queue_depth_), &context_);
  if (result < 0) {
    words = "io_setup: " + system_reason(-result) + (result == -EAGAIN ? system_limit_words() : "");
    context_ = nullptr;
    return false;
  }
  event_fd_ = eventfd(0, EFD_CLOEXEC);
  if (event_fd_ < 0) {
    words = "eventfd: " + system_reason(errno);
    return false;
  }
  return true;
}

void LibaioTransport::start(std::span<const Piece> pieces) {
  batch_.clear();
  for (const Piece& piece : pieces) {
    TERRACE_ASSERT(piece.id < queue_depth_, "more pieces were started than the queue depth");
    ledger_.start(piece.id);
    iocb& block = blocks_[piece.id];
    const auto offset = static_cast<long long>(piece.offset);
    if (piece.kind == OpKind::read) {
      io_prep_pread(&block, piece.fd, piece.data, piece.bytes, offset);
    } else {
      io_prep_pwrite(&block, piece.fd, piece.data, piece.bytes, offset);
    }
    io_set_eventfd(&block, event_fd_);
    batch_.push_back(&block);
  }
  if (stopped_ != 0) {
    ledger_.refuse_all(-stopped_);
    return;
  }
  const std::span<iocb*> all(batch_);
  for (size_t begin = 0; begin < all.size();) {
    ++submit_calls_;
    const int result = io_submit(context_, static_cast<long>(all.size() - begin), all.subspan(begin).data());
    if (result == -EINTR) continue;
    if (result > 0) {
      begin += static_cast<size_t>(result);
    } else {  // it says why it does not take the first of them; the others may be fine
      ledger_.refuse(pieces[begin].id, result == 0 ? -EAGAIN : result);
      ++begin;
    }
  }
}

// io_destroy() returns when the kernel has let go of every piece, which moved or did not.
void LibaioTransport::stop(int error) {
  const int result = io_destroy(context_);
  TERRACE_ASSERT(result == 0, "io_destroy: " + system_reason(-result));
  context_ = nullptr;
  stopped_ = engine_stopped(error);
  ledger_.refuse_all(-stopped_);
}

size_t LibaioTransport::take_events(std::span<PieceResult> results) {
  const size_t room = std::min(results.size(), events_.size());
  if (room == 0 || stopped_ != 0) return 0;
  int result = -EINTR;
  while (result < 0) {
    timespec at_once{0, 0};
    result = io_getevents(context_, 0, static_cast<long>(room), events_.data(), &at_once);
    const int given_up = result < 0 && result != -EINTR ? patience_.failed(-result) : 0;
    if (given_up != 0) {
      stop(given_up);
      return ledger_.take_refused(results);
    }
  }
  patience_.succeeded();
  const auto count = static_cast<size_t>(result);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint32_t>(events_[i].obj - blocks_.data());
    ledger_.answer(id);
    results[i] = PieceResult{id, static_cast<int64_t>(events_[i].res)};
  }
  return count;
}

// The kernel makes an event visible before it counts the eventfd up, and wake() sets its mark before: whoever
// finds nothing and then sleeps is woken by whatever comes. A count left over from what was taken already
// costs one more turn.
Reaped LibaioTransport::reap(std::span<PieceResult> results, bool block) {
  for (;;) {
    const size_t refused = ledger_.take_refused(results);
    const size_t count = refused + take_events(results.subspan(refused));
    const bool woken = woken_.exchange(false);
    if (count > 0 || woken || !block) return {count, woken};
    sleep();
  }
}

// An eventfd that cannot be read is looked behind every millisecond.
void LibaioTransport::sleep() {
  uint64_t count;
  const ssize_t taken = read(event_fd_, &count, sizeof count);
  if (taken == sizeof count || errno == EINTR) return;
  constexpr timespec kPause{0, 1'000'000};
  nanosleep(&kPause, nullptr);
}

// Where the eventfd cannot be written, the mark is found when the next piece finishes, which the kernel
// counts by itself.
void LibaioTransport::wake() noexcept {
  woken_.store(true);
  const uint64_t one = 1;
  while (write(event_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::unique_ptr<Transport> make_libaio_transport(uint32_t queue_depth, Reason& words) {
  auto transport = std::make_unique<LibaioTransport>(queue_depth);
  if (!transport->create(words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
