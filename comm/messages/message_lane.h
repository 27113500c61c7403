// MessageLane: the operations of one lane of one rank on their way through a port. An operation waits for its
// `after`, exchanges headers with the ranks of its group, and moves its parts if nobody failed. While one
// moves its parts, the next one exchanges its headers.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/messages/message_header.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/messages/part_moves.h>
#include <terrace/comm/operations/operation.h>
#include <terrace/comm/operations/operation_book.h>

namespace terrace {

// Used by the thread of the port. Allocates nothing after the first operations, while nothing fails.
class MessageLane {
 public:
  // `peers`, `hook`, which may be null, and `book` outlive the lane. Messages have at most `message_bytes`,
  // the same on all ranks.
  MessageLane(Lane lane, uint32_t rank, uint32_t size, uint64_t message_bytes, HostPeers& peers,
              CommHook* hook, OperationBook& book);

  bool has_room() const { return !head_; }
  bool idle() const { return !head_ && !moving_; }
  // There is room. Operations come in the order of the lane.
  void take(const CommOperation& operation);
  // Moves on what can move, completes what is over, and returns whether anything did. Throws PeerLoss.
  bool advance(MessagePort& port);
  // Everything that the lane has taken fails, because of what failed on `rank`, but an operation whose
  // `after` is not done: until then its memory is somebody else's. Returns whether anything has failed. The
  // port was abandoned.
  bool fail(uint32_t rank, const std::exception_ptr& failure);

 private:
  bool may_begin() const { return head_->after == nullptr || head_->after->done(); }
  bool advance_head(MessagePort& port);
  bool advance_moving(MessagePort& port);
  void send_header();

  CommHook* const hook_;
  const uint32_t size_;
  OperationBook& book_;
  std::optional<CommOperation> head_;  // the one whose headers are exchanged
  bool header_sent_ = false;
  uint64_t head_begun_ns_ = 0;
  std::optional<CommOperation> moving_;  // the one whose parts move
  uint64_t moving_begun_ns_ = 0;
  MessageHeaders headers_;  // of head_
  MessageFlow headers_out_, headers_in_;
  PartMoves parts_;  // of moving_
};

}  // namespace terrace
