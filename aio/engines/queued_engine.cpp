#include <terrace/aio/engines/queued_engine.h>

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <string>

#include <terrace/aio/engine_limits.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

// A file that answers EAGAIN this often in a row will not change its mind.
constexpr uint32_t kFruitlessTries = 1000;

// Where one request must end: the kernel's offsets are signed.
constexpr uint64_t kLargestOffset = std::numeric_limits<int64_t>::max();

std::string range_text(uint64_t least, uint64_t most) {
  return std::to_string(least) + " to " + std::to_string(most);
}

void require(bool in_range, const char* option, uint64_t value, const std::string& range) {
  if (in_range) return;
  throw Error(ErrorKind::config, {"cannot use the I/O option", option,
                                  "it is " + std::to_string(value) + " and must be " + range, ""});
}

}  // namespace

void check_options(const EngineOptions& options) {
  require(options.queue_depth >= 1 && options.queue_depth <= kLargestQueueDepth, "queue_depth",
          options.queue_depth, range_text(1, kLargestQueueDepth));
  require(options.block_bytes >= kDirectBytes && options.block_bytes <= kLargestBlockBytes &&
              options.block_bytes % kDirectBytes == 0,
          "block_bytes", options.block_bytes,
          "a multiple of " + std::to_string(kDirectBytes) + ", at most " + format_bytes(kLargestBlockBytes));
  require(options.thread_count >= 1 && options.thread_count <= kMostEngineThreads, "thread_count",
          options.thread_count, range_text(1, kMostEngineThreads));
  require(options.backlog_count >= 1 && options.backlog_count <= kLargestBacklog, "backlog_count",
          options.backlog_count, range_text(1, kLargestBacklog));
}

std::unique_ptr<Engine> make_engine_over(std::unique_ptr<Transport> transport, const EngineOptions& options) {
  return std::make_unique<QueuedEngine>(std::move(transport), options);
}

QueuedEngine::QueuedEngine(std::unique_ptr<Transport> transport, const EngineOptions& options)
    : options_((check_options(options), options)),
      transport_(std::move(transport)),
      slots_(options.queue_depth + options.backlog_count),
      pieces_(options.queue_depth),
      results_(options.queue_depth) {
  batch_.reserve(options.queue_depth);
  free_pieces_.reserve(options.queue_depth);
  for (uint32_t id = options.queue_depth; id-- > 0;) free_pieces_.push_back(id);
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) append(free_slots_, slot);
}

QueuedEngine::~QueuedEngine() {
  while (in_flight_ > 0) wait(in_flight_);
}

void QueuedEngine::append(List& list, uint32_t slot) {
  slots_[slot].next = kNone;
  if (list.tail == kNone) {
    list.head = slot;
  } else {
    slots_[list.tail].next = slot;
  }
  list.tail = slot;
}

uint32_t QueuedEngine::pop(List& list) {
  const uint32_t slot = list.head;
  TERRACE_ASSERT(slot != kNone, "an empty list of requests has no head");
  list.head = slots_[slot].next;
  if (list.head == kNone) list.tail = kNone;
  return slot;
}

// Relaxed: this finds two threads that are inside at once, and must not stand in for the order between calls
// that the program owes and the thread sanitizer checks.
QueuedEngine::Call::Call(QueuedEngine& engine) : engine_(engine) {
  const std::thread::id here = std::this_thread::get_id();
  std::thread::id inside{};
  is_outermost_ = engine_.caller_.compare_exchange_strong(inside, here, std::memory_order_relaxed);
  TERRACE_ASSERT(is_outermost_ || inside == here, "an engine is used by two threads at the same moment");
}

QueuedEngine::Call::~Call() {
  if (is_outermost_) engine_.caller_.store(std::thread::id(), std::memory_order_relaxed);
}

void QueuedEngine::submit(std::span<const Request> requests) {
  const Call call(*this);
  for (const Request& request : requests) {
    while (free_slots_.head == kNone) make_room();
    accept(request);
  }
  pump();
  if (callback_depth_ == 0) run_ready();
}

void QueuedEngine::accept(const Request& request) {
  TERRACE_ASSERT(request.on_complete != nullptr, "a request needs a callback");
  TERRACE_ASSERT(request.data != nullptr || request.bytes == 0, "a request of some bytes needs memory");
  const uint32_t index = pop(free_slots_);
  slots_[index] = Slot{request, 0, request.bytes, 0, 0, kNone};
  ++in_flight_;
  ++stats_.requests;
  stats_.peak_requests_in_flight =
      std::max(stats_.peak_requests_in_flight, static_cast<uint32_t>(in_flight_));
  const bool beyond = request.offset > kLargestOffset || request.bytes > kLargestOffset - request.offset;
  if (beyond) {
    slots_[index].error = EINVAL;
    slots_[index].whole_bytes = 0;
  }
  append(beyond || request.bytes == 0 ? ready_ : backlog_[static_cast<size_t>(request.priority)], index);
}

// Frees at least one slot, unless a callback took it at once.
void QueuedEngine::make_room() {
  pump();
  if (ready_.head == kNone) reap(true);
  run_one_ready();
}

uint32_t QueuedEngine::next_in_backlog() const {
  const uint32_t critical = backlog_[static_cast<size_t>(Priority::critical)].head;
  return critical != kNone ? critical : backlog_[static_cast<size_t>(Priority::background)].head;
}

// Starts what is to be continued and as many new pieces as there is room for.
void QueuedEngine::pump() {
  while (!free_pieces_.empty()) {
    const uint32_t slot = next_in_backlog();
    if (slot == kNone) break;
    issue_piece(slot);
  }
  if (batch_.empty()) return;
  stats_.pieces += batch_.size();
  const auto in_flight_pieces = static_cast<uint32_t>(pieces_.size() - free_pieces_.size());
  stats_.peak_pieces_in_flight = std::max(stats_.peak_pieces_in_flight, in_flight_pieces);
  transport_->start(batch_);
  batch_.clear();
}

void QueuedEngine::issue_piece(uint32_t index) {
  Slot& slot = slots_[index];
  const Request& request = slot.request;
  const uint64_t bytes = std::min(options_.block_bytes, request.bytes - slot.issued_bytes);
  const uint32_t id = free_pieces_.back();
  free_pieces_.pop_back();
  pieces_[id] = PieceState{Piece{request.kind, request.fd, request.offset + slot.issued_bytes,
                                 request.data + slot.issued_bytes, static_cast<uint32_t>(bytes), id},
                           index, 0, 0, 0};
  batch_.push_back(pieces_[id].piece);
  ++slot.pieces;
  slot.issued_bytes += bytes;
  if (slot.issued_bytes == request.bytes) pop(backlog_[static_cast<size_t>(request.priority)]);
}

void QueuedEngine::reap(bool block) {
  const Reaped reaped = transport_->reap(results_, block);
  woken_ = woken_ || reaped.woken;
  for (size_t i = 0; i < reaped.count; ++i) handle(results_[i]);
  pump();  // before any callback, which may compute for long: the queue stays full meanwhile
}

void QueuedEngine::handle(const PieceResult& result) {
  PieceState& state = pieces_[result.id];
  if (result.result > 0) {
    advance(state, static_cast<uint64_t>(result.result));
    return;
  }
  const int error = static_cast<int>(-result.result);
  const bool is_read = state.piece.kind == OpKind::read;
  if (error == 0) {
    fail(state, is_read ? kEndOfFile : EIO);
  } else if ((error == EINTR || error == EAGAIN) && ++state.fruitless_tries < kFruitlessTries) {
    ++stats_.retries;
    batch_.push_back(state.piece);
  } else if (error == EINVAL && is_read && state.moved_bytes > 0 && at_end_of_file(state)) {
    fail(state, kEndOfFile);
  } else if (error == EINVAL && rewind(state)) {
    ++stats_.retries;
    batch_.push_back(state.piece);
  } else {
    fail(state, error);
  }
}

void QueuedEngine::advance(PieceState& state, uint64_t moved_bytes) {
  Piece& piece = state.piece;
  TERRACE_ASSERT(moved_bytes <= piece.bytes, "more bytes were moved than were asked for");
  (piece.kind == OpKind::read ? stats_.bytes_read : stats_.bytes_written) += moved_bytes;
  piece.offset += moved_bytes;
  piece.data += moved_bytes;
  piece.bytes -= static_cast<uint32_t>(moved_bytes);
  if (piece.bytes == 0) {
    finish_piece(piece.id);
    return;
  }
  ++stats_.short_transfers;
  state.fruitless_tries = 0;
  state.moved_bytes += static_cast<uint32_t>(moved_bytes);
  batch_.push_back(piece);
}

// A direct read ends short at the end of a file whose size is unaligned; some file systems answer the
// continuation, which starts there, with EINVAL instead of 0.
bool QueuedEngine::at_end_of_file(const PieceState& state) const {
  struct stat status;
  return fstat(state.piece.fd, &status) == 0 && static_cast<uint64_t>(status.st_size) <= state.piece.offset;
}

// A direct transfer that ended within a block cannot go on from there: the block is moved again.
bool QueuedEngine::rewind(PieceState& state) {
  Piece& piece = state.piece;
  const auto back = static_cast<uint32_t>(piece.offset % kDirectBytes);
  if (back == 0 || back > state.moved_bytes || ++state.rewinds > kFruitlessTries) return false;
  (piece.kind == OpKind::read ? stats_.bytes_read : stats_.bytes_written) -= back;
  state.moved_bytes -= back;
  piece.offset -= back;
  piece.data -= back;
  piece.bytes += back;
  return true;
}

// Nothing more of a failed request is issued; its pieces in flight are waited for, since they use its memory.
void QueuedEngine::fail(PieceState& state, int error) {
  Slot& slot = slots_[state.slot];
  const uint64_t failed_at = state.piece.offset - slot.request.offset;
  if (slot.error == 0 || failed_at < slot.whole_bytes) {
    slot.error = error;
    slot.whole_bytes = failed_at;
  }
  if (slot.issued_bytes < slot.request.bytes) {
    const uint32_t head = pop(backlog_[static_cast<size_t>(slot.request.priority)]);
    TERRACE_ASSERT(head == state.slot, "only the first request of a backlog may be partly issued");
    slot.issued_bytes = slot.request.bytes;
  }
  finish_piece(state.piece.id);
}

void QueuedEngine::finish_piece(uint32_t id) {
  const uint32_t index = pieces_[id].slot;
  Slot& slot = slots_[index];
  free_pieces_.push_back(id);
  --slot.pieces;
  if (slot.pieces == 0 && slot.issued_bytes == slot.request.bytes) append(ready_, index);
}

bool QueuedEngine::run_one_ready() {
  if (ready_.head == kNone) return false;
  const uint32_t index = pop(ready_);
  const Slot slot = slots_[index];
  append(free_slots_, index);  // before the callback, which may submit its successor
  --in_flight_;
  ++completed_;
  if (slot.error != 0) ++stats_.failed;
  ++callback_depth_;
  slot.request.on_complete(slot.request.context, Completion{slot.error, slot.whole_bytes, slot.request.tag});
  --callback_depth_;
  return true;
}

void QueuedEngine::run_ready() {
  while (run_one_ready()) {
  }
}

size_t QueuedEngine::poll() {
  const Call call(*this);
  TERRACE_ASSERT(callback_depth_ == 0, "poll() was called from a callback");
  const uint64_t before = completed_;
  reap(false);
  run_ready();
  return completed_ - before;
}

size_t QueuedEngine::wait(size_t min_count) {
  const Call call(*this);
  TERRACE_ASSERT(callback_depth_ == 0, "wait() was called from a callback");
  const uint64_t before = completed_;
  const uint64_t target = before + std::min<uint64_t>(min_count, in_flight_);
  reap(false);
  run_ready();
  while (completed_ < target && !woken_) {
    reap(true);
    run_ready();
  }
  woken_ = false;
  return completed_ - before;
}

bool QueuedEngine::register_buffer(std::span<std::byte> memory) {
  const Call call(*this);
  return transport_->register_buffer(memory);
}

void QueuedEngine::unregister_buffer(std::span<std::byte> memory) {
  const Call call(*this);
  transport_->unregister_buffer(memory);
}

bool QueuedEngine::register_file(int fd) {
  const Call call(*this);
  return transport_->register_file(fd);
}

void QueuedEngine::unregister_file(int fd) {
  const Call call(*this);
  transport_->unregister_file(fd);
}

EngineStats QueuedEngine::stats() const {
  EngineStats stats = stats_;
  const TransportStats below = transport_->stats();
  stats.registered_pieces = below.registered_pieces;
  stats.registered_file_pieces = below.registered_file_pieces;
  stats.submit_calls = below.submit_calls;
  return stats;
}

}  // namespace terrace::io
