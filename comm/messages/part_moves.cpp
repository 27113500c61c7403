#include <terrace/comm/messages/part_moves.h>

#include <terrace/base/assert.h>

namespace terrace {

PartMoves::PartMoves(Lane lane, uint32_t rank, uint32_t size, uint64_t message_bytes, HostPeers& peers)
    : peers_(peers),
      rank_(rank),
      size_(size),
      parts_out_(FlowDirection::send, rank, size, tag_of(lane, LaneMessage::part), message_bytes),
      parts_in_(FlowDirection::receive, rank, size, tag_of(lane, LaneMessage::part), message_bytes),
      reads_(rank, size),
      heard_(size),
      has_read_out_(FlowDirection::send, rank, size, tag_of(lane, LaneMessage::has_read), message_bytes),
      has_read_in_(FlowDirection::receive, rank, size, tag_of(lane, LaneMessage::has_read), message_bytes) {}

void PartMoves::begin(const CommOperation& operation, const MessageHeaders& headers) {
  TERRACE_ASSERT(over(), "the parts of the operation before have moved");
  for (uint32_t other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    if (!operation.group.has(other)) {
      set_sent(other, {});
      set_received(other, {}, 0);
      continue;
    }
    const bool absent = headers.absent_from(other);
    if (operation.kind == CommKind::exchange) operation.from[other].absent = absent;
    const CommPart into = operation.part_of(other);
    set_sent(other, operation.part_for(other));
    set_received(other, absent ? std::span<std::byte>() : std::span(into.memory, into.bytes),
                 headers.address_from(other));
  }
  parts_in_.begin();
  parts_out_.begin();
  reads_.begin();
  has_read_in_.begin();
  said_it_ = false;
}

void PartMoves::set_sent(uint32_t other, const CommPart& part) {
  const uint64_t bytes = part.absent ? 0 : part.bytes;
  const bool is_read = peers_.is_read_by(other, bytes);
  parts_out_.set_part(other, std::span(part.memory, is_read ? 0 : bytes));
  has_read_in_.set_part(other, std::span(&heard_[other], is_read ? 1 : 0));
}

void PartMoves::set_received(uint32_t other, std::span<std::byte> into, uint64_t address) {
  const bool reads = peers_.reads(other, into.size());
  parts_in_.set_part(other, reads ? std::span<std::byte>() : into);
  reads_.set_part(other, address, reads ? into : std::span<std::byte>());
  has_read_out_.set_part(other, std::span(&said_, reads ? 1 : 0));
}

bool PartMoves::advance(MessagePort& port) {
  bool moved = parts_in_.advance(port);
  moved |= parts_out_.advance(port);
  moved |= reads_.advance(peers_);
  if (reads_.over() && !said_it_) {
    has_read_out_.begin();
    said_it_ = true;
  }
  moved |= has_read_out_.advance(port);
  moved |= has_read_in_.advance(port);
  return moved;
}

bool PartMoves::over() const {
  return parts_in_.over() && parts_out_.over() && reads_.over() && said_it_ && has_read_out_.over() &&
         has_read_in_.over();
}

}  // namespace terrace
