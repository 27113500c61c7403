#include <terrace/comm/message_lane.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// Headers and parts of a lane overtake each other, so they have tags of their own.
uint32_t tag_of_headers(Lane lane) {
  return static_cast<uint32_t>(2 * index_of(lane));
}
uint32_t tag_of_parts(Lane lane) {
  return tag_of_headers(lane) + 1;
}

std::span<std::byte> bytes_of(const CommPart& part, bool absent) {
  return absent ? std::span<std::byte>() : std::span(part.memory, part.bytes);
}

}  // namespace

MessageLane::MessageLane(Lane lane, uint32_t rank, uint32_t size, uint64_t piece_bytes, CommHook* hook,
                         OperationBook& book)
    : hook_(hook),
      book_(book),
      rank_(rank),
      size_(size),
      headers_(rank, size),
      headers_out_(FlowDirection::send, rank, size, tag_of_headers(lane), piece_bytes),
      headers_in_(FlowDirection::receive, rank, size, tag_of_headers(lane), piece_bytes),
      parts_out_(FlowDirection::send, rank, size, tag_of_parts(lane), piece_bytes),
      parts_in_(FlowDirection::receive, rank, size, tag_of_parts(lane), piece_bytes) {
  for (uint32_t other = 0; other < size; ++other) {
    headers_out_.set_part(other, headers_.of(rank));
    headers_in_.set_part(other, headers_.of(other));
  }
}

void MessageLane::take(const CommOperation& operation) {
  TERRACE_ASSERT(has_room(), "who gives an operation has asked for room");
  head_ = operation;
  header_sent_ = false;
}

bool MessageLane::advance(MessagePort& port) {
  const bool moved = advance_moving(port);
  return advance_head(port) || moved;
}

bool MessageLane::advance_head(MessagePort& port) {
  if (!head_) return false;
  bool moved = false;
  if (!header_sent_) {
    if (!may_begin()) return false;
    send_header();
    moved = true;
  }
  moved |= headers_in_.advance(port);
  moved |= headers_out_.advance(port);
  // The operation before this one takes effect first, even where this one fails.
  if (!headers_in_.over() || !headers_out_.over() || moving_) return moved;
  if (std::exception_ptr failure = headers_.verdict().failure_of(*head_)) {
    Event& done = *head_->done;
    head_.reset();
    done.complete_one(std::move(failure));
  } else {
    begin_moving();
  }
  return true;
}

void MessageLane::send_header() {
  headers_.write(*head_, head_->failure_before(hook_));
  headers_in_.begin();
  headers_out_.begin();
  header_sent_ = true;
}

void MessageLane::begin_moving() {
  for (uint32_t other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const CommPart sent = head_->part_for(other);
    const bool absent = headers_.absent_from(other);
    if (head_->kind == CommKind::exchange) head_->from[other].absent = absent;
    parts_out_.set_part(other, bytes_of(sent, sent.absent));
    parts_in_.set_part(other, bytes_of(head_->part_of(other), absent));
  }
  parts_in_.begin();
  parts_out_.begin();
  moving_ = std::exchange(head_, std::nullopt);
}

bool MessageLane::advance_moving(MessagePort& port) {
  if (!moving_) return false;
  bool moved = parts_in_.advance(port);
  moved |= parts_out_.advance(port);
  if (!parts_in_.over() || !parts_out_.over()) return moved;
  book_.count(*moving_);
  if (hook_ != nullptr) hook_->after(*moving_);
  Event& done = *moving_->done;
  moving_.reset();
  done.complete_one();
  return true;
}

bool MessageLane::fail(uint32_t rank, const std::exception_ptr& failure) {
  bool failed = false;
  for (std::optional<CommOperation>* operation : {&moving_, &head_}) {
    if (!*operation || (operation == &head_ && !may_begin())) continue;
    Event& done = *(*operation)->done;
    std::exception_ptr why = failed_there(**operation, rank, failure);
    operation->reset();
    done.complete_one(std::move(why));
    failed = true;
  }
  return failed;
}

}  // namespace terrace
