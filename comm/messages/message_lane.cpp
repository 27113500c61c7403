#include <terrace/comm/messages/message_lane.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

MessageLane::MessageLane(Lane lane, uint32_t rank, uint32_t size, uint64_t message_bytes, HostPeers& peers,
                         CommHook* hook, OperationBook& book)
    : hook_(hook),
      size_(size),
      book_(book),
      headers_(rank, size),
      headers_out_(FlowDirection::send, rank, size, tag_of(lane, LaneMessage::header), message_bytes),
      headers_in_(FlowDirection::receive, rank, size, tag_of(lane, LaneMessage::header), message_bytes),
      parts_(lane, rank, size, message_bytes, peers) {}

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
    parts_.begin(*head_, headers_);
    moving_ = std::exchange(head_, std::nullopt);
    moving_begun_ns_ = head_begun_ns_;
  }
  return true;
}

void MessageLane::send_header() {
  head_begun_ns_ = head_->now_ns();
  headers_.write(*head_, head_->failure_before(hook_));
  for (uint32_t other = 0; other < size_; ++other) {
    const bool takes_part = head_->group.has(other);
    headers_out_.set_part(other, takes_part ? headers_.of(head_->rank) : std::span<std::byte>());
    headers_in_.set_part(other, takes_part ? headers_.of(other) : std::span<std::byte>());
  }
  headers_in_.begin();
  headers_out_.begin();
  header_sent_ = true;
}

bool MessageLane::advance_moving(MessagePort& port) {
  if (!moving_) return false;
  const bool moved = parts_.advance(port);
  if (!parts_.over()) return moved;
  book_.count(*moving_, moving_begun_ns_);
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
