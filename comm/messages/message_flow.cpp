#include <terrace/comm/messages/message_flow.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

MessageFlow::MessageFlow(FlowDirection direction, uint32_t rank, uint32_t size, uint32_t tag,
                         uint64_t piece_bytes)
    : direction_(direction), rank_(rank), tag_(tag), piece_bytes_(piece_bytes), parts_(size), step_(size) {}

uint32_t MessageFlow::other_at(uint64_t step) const {
  const uint64_t ranks = parts_.size();
  const uint64_t distance = direction_ == FlowDirection::send ? step : ranks - step;
  return static_cast<uint32_t>((rank_ + distance) % ranks);
}

void MessageFlow::begin() {
  TERRACE_ASSERT(over(), "the flow before this one is over");
  step_ = 1;
  offset_bytes_ = 0;
  skip_what_has_moved();
}

void MessageFlow::skip_what_has_moved() {
  while (step_ < parts_.size() && offset_bytes_ == parts_[other_at(step_)].size()) {
    ++step_;
    offset_bytes_ = 0;
  }
}

bool MessageFlow::advance(MessagePort& port) {
  bool moved = test_pending(port);
  while (step_ < parts_.size() && pending_count_ < kWindow) {
    start_piece(port);
    moved = true;
  }
  return moved;
}

bool MessageFlow::test_pending(MessagePort& port) {
  bool moved = false;
  for (size_t i = 0; i < pending_count_;) {
    const MessageState state = port.test(pending_[i].request);
    if (state == MessageState::failed) throw PeerLoss{pending_[i].other, port.reason()};
    if (state == MessageState::pending) {
      ++i;
      continue;
    }
    pending_[i] = pending_[--pending_count_];
    moved = true;
  }
  return moved;
}

void MessageFlow::start_piece(MessagePort& port) {
  const uint32_t other = other_at(step_);
  const std::span<std::byte> rest = parts_[other].subspan(offset_bytes_);
  const std::span<std::byte> piece = rest.first(std::min<uint64_t>(rest.size(), piece_bytes_));
  pending_[pending_count_++] = {direction_ == FlowDirection::send ? port.start_send(other, tag_, piece)
                                                                  : port.start_receive(other, tag_, piece),
                                other};
  offset_bytes_ += piece.size();
  skip_what_has_moved();
}

}  // namespace terrace
