// PartMoves: the parts of a lane's operations on their way to and from this rank, for one operation after the
// other. A part comes as a message, or a rank of the same host reads it where it lies and then says so: until
// then the memory of it stays as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <terrace/comm/messages/host_peers.h>
#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/messages/message_header.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

// The tags of a lane's messages: those of one kind overtake those of the others.
enum class LaneMessage : uint8_t { header, part, has_read };
constexpr uint32_t tag_of(Lane lane, LaneMessage message) {
  return static_cast<uint32_t>(3 * index_of(lane)) + static_cast<uint32_t>(message);
}

// Used by the thread of the port. Allocates nothing after it was made.
class PartMoves {
 public:
  // `peers` outlives this. Messages have at most `message_bytes`, the same on all ranks.
  PartMoves(Lane lane, uint32_t rank, uint32_t size, uint64_t message_bytes, HostPeers& peers);

  // Begins with the parts of an operation, which tells the operation which of them are absent. The headers of
  // its group are there, and everything is over.
  void begin(const CommOperation& operation, const MessageHeaders& headers);
  // Moves on what can move and returns whether anything did. Throws PeerLoss.
  bool advance(MessagePort& port);
  // All parts for this rank have arrived, and those for the others have, or will whatever becomes of the
  // memory.
  bool over() const;

 private:
  void set_sent(uint32_t other, const CommPart& part);
  void set_received(uint32_t other, std::span<std::byte> into, uint64_t address);

  HostPeers& peers_;
  const uint32_t rank_;
  const uint32_t size_;
  MessageFlow parts_out_, parts_in_;
  PeerReads reads_;
  // That this rank has read, and that others have: a byte each, which nobody looks at.
  std::byte said_{1};
  std::vector<std::byte> heard_;  // by rank
  MessageFlow has_read_out_, has_read_in_;
  bool said_it_ = true;  // to those whose parts were read
};

}  // namespace terrace
