// PortPullWire: the wire of pulls over a message port. Words are messages of one length, of which one is
// always expected of each rank; bytes are read out of the memory of ranks of this host, or follow in
// messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <terrace/comm/messages/host_peers.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/pull/pull_wire.h>

namespace terrace {

// Used by the thread of the port. Throws PeerLoss.
class PortPullWire final : public PullWire {
 public:
  // `peers` are introduced before the first word. Both outlive this.
  PortPullWire(uint32_t size, uint64_t message_bytes, MessagePort& port, HostPeers& peers);

  void send(uint32_t to, const PullHeader& header) override;
  bool receive(uint32_t from, PullHeader& header) override;
  bool is_read_by(uint32_t other, uint64_t bytes) const override { return peers_.is_read_by(other, bytes); }
  bool reads(uint32_t other, uint64_t bytes) const override { return peers_.reads(other, bytes); }
  void read(uint32_t other, uint64_t address, std::span<std::byte> into) override {
    peers_.read(other, address, into);
  }
  uint32_t send_bytes(uint32_t to, std::span<const std::byte> bytes) override;
  uint32_t receive_bytes(uint32_t from, std::span<std::byte> into) override;
  bool is_over(uint32_t transfer) override;

  // Moves words on, and returns whether any has left.
  bool advance();
  // True if no word is on its way from here.
  bool idle() const { return sending_count_ == 0; }
  // The port was abandoned.
  void forget();

 private:
  struct Pending {
    MessageRequest request{};
    uint32_t other = 0;
  };
  // Takes out of `pending` what is over, and returns whether nothing is left.
  bool are_over(std::vector<Pending>& pending);
  bool test(const Pending& pending);
  uint32_t take_transfer();

  const uint64_t message_bytes_;
  MessagePort& port_;
  HostPeers& peers_;
  std::deque<PullHeader> words_;  // messages point to them
  std::vector<uint32_t> free_words_;
  std::vector<std::vector<Pending>> sending_;  // by word: its pieces that are not over
  uint32_t sending_count_ = 0;                 // words of which some are not
  std::vector<PullHeader> heard_;              // by rank: the word that arrives
  std::vector<std::vector<Pending>> listening_;
  std::vector<bool> listens_;
  std::vector<std::vector<Pending>> transfers_;  // by number: what is not over
  std::vector<uint32_t> free_transfers_;
};

}  // namespace terrace
