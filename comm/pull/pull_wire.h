// PullWire: the words between the ranks of pulls, and the bytes behind them. A rank that can reads the bytes
// where they lie in the other one's memory; else they follow in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/comm/pull/pulls.h>

namespace terrace {

enum class PullKind : uint32_t {
  ask,    // for an item at a version: the words
  here,   // the item lies at the address; or its bytes follow
  read,   // the item was read
  keep,   // something is handed over
  want,   // the bytes are to follow
  bytes,  // they do
  taken,  // the bytes were read
  end     // the rank has ended
};

inline constexpr uint32_t kPullMagic = 0x31505254;  // "TRP1"

// In the machine's byte order.
struct PullHeader {
  uint32_t magic = kPullMagic;
  PullKind kind = PullKind::end;
  uint64_t ticket = 0;  // the receiver's, or of what is handed over the sender's
  uint64_t reply = 0;   // the sender's, for its answer
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t follows = 0;  // 1: the bytes are in messages
  PullWords words = {};
};
static_assert(sizeof(PullHeader) == 80, "no padding whose bytes nobody has set");

// One thread uses it. It throws where a rank cannot be reached.
class PullWire {
 public:
  virtual ~PullWire() = default;

  // Both keep the order between two ranks.
  virtual void send(uint32_t to, const PullHeader& header) = 0;
  virtual bool receive(uint32_t from, PullHeader& header) = 0;
  // Whether that rank reads so many bytes here itself.
  virtual bool is_read_by(uint32_t other, uint64_t bytes) const = 0;
  // The same from here; false where it has to be messages.
  virtual bool reads(uint32_t other, uint64_t bytes) const = 0;
  virtual void read(uint32_t other, uint64_t address, std::span<std::byte> into) = 0;

  // Bytes in messages, in the order of these calls between two ranks. Each returns the number of a transfer,
  // which is_over() gives up once it says so.
  virtual uint32_t send_bytes(uint32_t to, std::span<const std::byte> bytes) = 0;
  virtual uint32_t receive_bytes(uint32_t from, std::span<std::byte> into) = 0;
  virtual bool is_over(uint32_t transfer) = 0;
};

}  // namespace terrace
