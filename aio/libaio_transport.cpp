#include <terrace/aio/libaio_transport.h>

#include <libaio.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
  bool create(std::string& words);

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
  size_t take_refused(std::span<PieceResult> results);
  void sleep();

  const uint32_t queue_depth_;
  io_context_t context_ = nullptr;
  int event_fd_ = -1;
  std::atomic<bool> woken_{false};
  std::vector<iocb> blocks_;  // by Piece::id; the kernel reads one only inside io_submit
  std::vector<iocb*> batch_;
  std::vector<io_event> events_;
  std::vector<PieceResult> refused_;  // what io_submit would not take
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
    : queue_depth_(queue_depth), blocks_(queue_depth), events_(queue_depth) {
  batch_.reserve(queue_depth);
  refused_.reserve(queue_depth);
}

LibaioTransport::~LibaioTransport() {
  if (context_ != nullptr) io_destroy(context_);
  if (event_fd_ >= 0) close(event_fd_);
}

bool LibaioTransport::create(std::string& words) {
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
  const std::span<iocb*> all(batch_);
  for (size_t begin = 0; begin < all.size();) {
    ++submit_calls_;
    const int result = io_submit(context_, static_cast<long>(all.size() - begin), all.subspan(begin).data());
    if (result == -EINTR) continue;
    if (result > 0) {
      begin += static_cast<size_t>(result);
    } else {  // it says why it does not take the first of them; the others may be fine
      refused_.push_back({pieces[begin].id, result == 0 ? -EAGAIN : result});
      ++begin;
    }
  }
}

size_t LibaioTransport::take_refused(std::span<PieceResult> results) {
  const size_t count = std::min(results.size(), refused_.size());
  std::copy_n(refused_.end() - static_cast<std::ptrdiff_t>(count), count, results.begin());
  refused_.resize(refused_.size() - count);
  return count;
}

size_t LibaioTransport::take_events(std::span<PieceResult> results) {
  const size_t room = std::min(results.size(), events_.size());
  if (room == 0) return 0;
  int result = -EINTR;
  while (result == -EINTR) {
    timespec at_once{0, 0};
    result = io_getevents(context_, 0, static_cast<long>(room), events_.data(), &at_once);
  }
  TERRACE_ASSERT(result >= 0, "io_getevents: " + system_reason(-result));
  const auto count = static_cast<size_t>(result);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint32_t>(events_[i].obj - blocks_.data());
    results[i] = PieceResult{id, static_cast<int64_t>(events_[i].res)};
  }
  return count;
}

// The kernel makes an event visible before it counts the eventfd up, and wake() sets its mark before: whoever
// finds nothing and then sleeps is woken by whatever comes. A count left over from what was taken already
// costs one more turn.
Reaped LibaioTransport::reap(std::span<PieceResult> results, bool block) {
  for (;;) {
    const size_t refused = take_refused(results);
    const size_t count = refused + take_events(results.subspan(refused));
    const bool woken = woken_.exchange(false);
    if (count > 0 || woken || !block) return {count, woken};
    sleep();
  }
}

void LibaioTransport::sleep() {
  uint64_t count;
  const ssize_t taken = read(event_fd_, &count, sizeof count);
  TERRACE_ASSERT(taken == sizeof count || errno == EINTR, "reading the eventfd: " + system_reason(errno));
}

void LibaioTransport::wake() noexcept {
  woken_.store(true);
  const uint64_t one = 1;
  ssize_t written = -1;
  do {
    written = write(event_fd_, &one, sizeof one);
  } while (written < 0 && errno == EINTR);
  TERRACE_ASSERT(written == sizeof one, "writing the eventfd: " + system_reason(errno));
}

}  // namespace

std::unique_ptr<Transport> make_libaio_transport(uint32_t queue_depth, std::string& words) {
  auto transport = std::make_unique<LibaioTransport>(queue_depth);
  if (!transport->create(words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
