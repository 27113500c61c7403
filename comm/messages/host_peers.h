// HostPeers: the ranks of this host whose memory this rank reads, and those that read its own. Ranks find
// that out by trying, once, over the port: each says who it is and where a word of its memory lies, reads the
// words of the others, and tells them whether that went well.
//
// The word says that the rank takes part. A read takes it along, behind the bytes, so that what a rank has
// given up, whose memory may be used for anything, is never taken for what it had to say; nor is the memory
// of another process that has got the number of one that is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/connections/process_memory.h>
#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/messages/message_port.h>

namespace terrace {

struct HostPeersOptions {
  uint64_t least_read_bytes = 1;  // smaller parts are messages; the same on all ranks
  ReadProcess read_process = {};  // empty, on all ranks alike: nobody reads
};

inline constexpr uint64_t kHelloMagic = 0x31504d5452524554;  // "TERRTMP1"

// What a rank says of itself, in the machine's byte order.
struct PeerHello {
  uint64_t magic = kHelloMagic;
  uint64_t host = 0;               // host_hash()
  uint64_t process_namespace = 0;  // process_namespace()
  uint64_t process = 0;
  uint64_t word_address = 0;
  uint64_t word = 0;
};
static_assert(sizeof(PeerHello) == 48, "no padding whose bytes nobody has set");

// Used by the thread of the port. Allocates nothing once introduced.
class HostPeers {
 public:
  HostPeers(uint32_t rank, uint32_t size, HostPeersOptions options, uint64_t message_bytes);

  // Moves the introduction on and returns whether anything moved. Throws PeerLoss.
  bool advance(MessagePort& port);
  // Nobody reads before.
  bool introduced() const { return stage_ == Stage::over; }

  // Whether this rank reads a part of so many bytes out of that rank's memory; and whether that rank reads
  // one out of this one's. Else it is a message.
  bool reads(uint32_t other, uint64_t bytes) const {
    return readable_[other] == std::byte{1} && is_large(bytes);
  }
  bool is_read_by(uint32_t other, uint64_t bytes) const {
    return readers_[other] == std::byte{1} && is_large(bytes);
  }
  // Copies memory of that rank. Throws PeerLoss where not all of it came, or where the rank has given up.
  void read(uint32_t other, uint64_t address, std::span<std::byte> into);

  // Whatever anybody reads of this rank from now on is lost.
  void give_up() { word_.store(0); }

  // A sentence for the log, how the ranks of this host exchange bytes, and where they do not read, why; empty
  // where this rank is alone on its host. Introduced.
  const std::string& sentence() const { return sentence_; }

 private:
  enum class Stage : uint8_t { begin, hellos, findings, over };
  bool is_large(uint64_t bytes) const { return bytes >= options_.least_read_bytes && bytes > 0; }
  void send_hello();
  void try_others();
  std::string why_unreadable(uint32_t other);
  void conclude();

  const uint32_t rank_;
  const HostPeersOptions options_;
  std::atomic<uint64_t> word_;
  Stage stage_;
  std::vector<PeerHello> hellos_;  // by rank
  // By rank: whether this rank reads there, and whether that one reads here.
  std::vector<std::byte> readable_, readers_;
  MessageFlow out_, in_;
  uint32_t neighbour_count_ = 0;  // ranks of this host
  std::string reason_;            // why the first of them that is not readable is not
  std::string sentence_;
};

// PeerReads: parts of other ranks that this one reads, for one operation after the other, in pieces.
class PeerReads {
 public:
  PeerReads(uint32_t rank, uint32_t size) : rank_(rank), parts_(size), step_(size) {}

  // Between operations: where the part of that rank lies in its memory, and where it goes; empty: nothing is
  // read.
  void set_part(uint32_t other, uint64_t address, std::span<std::byte> into) {
    parts_[other] = {address, into};
  }
  void begin() { step_ = 1, offset_bytes_ = 0; }
  // Reads a piece, if there is one left, and returns whether it did. Throws PeerLoss.
  bool advance(HostPeers& peers);
  bool over() const { return step_ >= parts_.size(); }

 private:
  const uint32_t rank_;
  std::vector<MemoryPiece> parts_;  // by rank
  uint64_t step_;                   // the distance of the rank that is read
  uint64_t offset_bytes_ = 0;
};

}  // namespace terrace
