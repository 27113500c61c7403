// MessageFlow: one part for each of the other ranks, or of each of them, on its way through a port in pieces,
// several at a time. Sends begin with the next rank and receives with the one before, so that no rank is
// everybody's first, and the oldest piece of all ranks is always under way on both sides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/messages/message_port.h>

namespace terrace {

inline constexpr uint64_t kMaxPieceBytes = uint64_t{64} << 20;

// What a flow throws when a message failed: the rank at its other end cannot be reached.
struct PeerLoss {
  uint32_t rank = 0;
  std::string why;
};

enum class FlowDirection : uint8_t { send, receive };

// Used by the thread of the port. Allocates nothing after it was made.
class MessageFlow {
 public:
  // Pieces have at most `piece_bytes`, the same on all ranks.
  MessageFlow(FlowDirection direction, uint32_t rank, uint32_t size, uint32_t tag, uint64_t piece_bytes);

  // Between flows: what goes to, or comes from, that rank. An empty part moves as no message. The memory
  // belongs to the caller and stays as it is until the flow is over.
  void set_part(uint32_t other, std::span<std::byte> part) { parts_[other] = part; }
  // Begins with the parts that were set.
  void begin();
  // Moves on what can move and returns whether anything did. Throws PeerLoss.
  bool advance(MessagePort& port);
  bool over() const { return pending_count_ == 0 && step_ >= parts_.size(); }

 private:
  static constexpr size_t kWindow = 8;
  struct Pending {
    MessageRequest request = {};
    uint32_t other = 0;
  };
  uint32_t other_at(uint64_t step) const;
  void skip_what_has_moved();
  bool test_pending(MessagePort& port);
  void start_piece(MessagePort& port);

  const FlowDirection direction_;
  const uint32_t rank_;
  const uint32_t tag_;
  const uint64_t piece_bytes_;
  std::vector<std::span<std::byte>> parts_;  // by rank
  uint64_t step_;              // of the pairwise order; the number of ranks where nothing is left
  uint64_t offset_bytes_ = 0;  // in the part of that step
  std::array<Pending, kWindow> pending_;
  size_t pending_count_ = 0;
};

}  // namespace terrace
