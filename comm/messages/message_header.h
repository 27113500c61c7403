// MessageHeaders: what the ranks of an operation tell each other before its bytes move, so that all of them
// find the same verdict. A rank tells every other one the same: what it does, why it cannot, and the sizes of
// all its parts.
//
// A header, in the machine's byte order: HeaderWords, then for each rank what this one sends to it and
// expects from it, and where the first lies: two uint64 of bytes and an address in the rank's own memory.
// Sent bytes are kAbsentBytes where the part is absent. What it says of ranks outside the group means
// nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

inline constexpr uint32_t kHeaderMagic = 0x33434d54;  // "TMC3"
inline constexpr uint64_t kAbsentBytes = std::numeric_limits<uint64_t>::max();

struct HeaderWords {
  uint32_t magic = kHeaderMagic;
  CommKind kind = CommKind::ballot;
  Lane lane = Lane::control;
  uint8_t failed = 0;
  uint8_t reserved = 0;
  uint32_t rank = 0;
  uint32_t chunk = 0;
  uint64_t index = 0;
  uint64_t decision_count = 0;
  uint64_t part_bytes = 0;
  uint32_t group_first = 0;
  uint32_t group_stride = 1;
  uint32_t group_count = 1;
  uint32_t reserved_too = 0;
  uint32_t what_bytes = 0;
  uint32_t text_bytes = 0;
  // Longer texts are cut here.
  std::array<char, 80> what{};
  std::array<char, 640> text{};  // of the failure
};
static_assert(sizeof(HeaderWords) == 64 + 80 + 640, "no padding whose bytes nobody has set");

// The headers of all ranks for one operation after the other of a lane. Not thread-safe. Allocates nothing
// after it was made and has carried an exchange, while nothing fails.
class MessageHeaders {
 public:
  MessageHeaders(uint32_t rank, uint32_t size);

  // Writes the own header, and looks at those of the operation's group from now on. `failure` is why this
  // rank cannot take part, or null.
  void write(const CommOperation& operation, std::exception_ptr failure);
  // The header of a rank: the own one to send, or where that of another rank arrives.
  std::span<std::byte> of(uint32_t rank);

  // When all headers of the group are there: whether the operation fails. The same on all its ranks. Throws
  // PeerLoss where a header cannot be read.
  CommVerdict verdict();
  // Whether that rank has nothing for this one. The header of the rank is there.
  bool absent_from(uint32_t rank) const;
  // Where what that rank has for this one lies in its memory. The header of the rank is there.
  uint64_t address_from(uint32_t rank) const;

 private:
  // What a header says of one rank: the bytes for it and of it, and where those for it lie.
  using PartWords = std::array<uint64_t, 3>;
  PartWords part_words(uint32_t from, uint32_t to) const;
  PostedOperation read(uint32_t rank);
  void read_parts(CommOperation& operation);

  const uint32_t rank_;
  const uint32_t size_;
  const uint64_t header_bytes_;
  std::vector<std::byte> bytes_;    // header after header, by rank
  std::vector<HeaderWords> words_;  // of the ranks, while a verdict is found
  std::vector<CommPart> parts_;     // by rank, what it sends and what it expects; empty before an exchange
  std::vector<PostedOperation> posted_;  // by the place in the group
  RankGroup group_;
  std::exception_ptr failure_;  // of the own rank
};

}  // namespace terrace
