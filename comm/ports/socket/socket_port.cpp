#include <terrace/comm/ports/socket/socket_port.h>

#include <deque>
#include <utility>
#include <vector>

#include <terrace/comm/ports/socket/socket_link.h>

namespace terrace {
namespace {

// As much as fits into the buffers of a connection, so that one look moves a message.
constexpr uint64_t kMessageBytes = 128 << 10;
// So long a port waits at its end for others to take what was sent to them.
constexpr std::chrono::seconds kFarewellTime(2);

class SocketPort final : public MessagePort {
 public:
  SocketPort(uint32_t rank, std::vector<StreamSocket> sockets) : rank_(rank) {
    links_.reserve(sockets.size());
    for (uint32_t r = 0; r < sockets.size(); ++r) links_.emplace_back(std::move(sockets[r]), r);
  }
  ~SocketPort() override {
    for (SocketLink& link : links_) link.say_farewell(rank_, "its port has ended");
    const Deadline deadline(kFarewellTime);
    for (SocketLink& link : links_) link.finish(deadline);
  }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return static_cast<uint32_t>(links_.size()); }
  uint64_t max_message_bytes() const override { return kMessageBytes; }
  std::string reason() const override { return reason_; }

  MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) override {
    // A message that is sent is only read.
    const uint32_t index = take_message(to, tag, const_cast<std::byte*>(bytes.data()), bytes.size());
    links_[to].send(messages_[index]);
    return MessageRequest{index};
  }
  MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) override {
    const uint32_t index = take_message(from, tag, bytes.data(), bytes.size());
    links_[from].receive(messages_[index]);
    return MessageRequest{index};
  }

  MessageState test(MessageRequest request) override {
    const auto index = static_cast<uint32_t>(request);
    SocketMessage& message = messages_[index];
    SocketLink& link = links_[message.other];
    if (!message.over) link.advance();
    if (!message.over) {
      message.failure = link.why_left();
      if (message.failure.empty()) return MessageState::pending;
      link.drop(message);
    }
    reason_ = std::exchange(message.failure, {});
    free_.push_back(index);
    return reason_.empty() ? MessageState::done : MessageState::failed;
  }

  void add_readable(std::vector<int>& descriptors) const override {
    for (const SocketLink& link : links_) {
      if (link.is_open()) descriptors.push_back(link.fd());
    }
  }

  void abandon(uint32_t blamed, const std::string& why) override {
    for (SocketLink& link : links_) link.say_farewell(blamed, why_given_up(*this, blamed, why));
  }

 private:
  uint32_t take_message(uint32_t other, uint32_t tag, std::byte* memory, uint64_t bytes) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(messages_.size()));
      messages_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    messages_[index] = {
        .other = other, .tag = tag, .memory = memory, .bytes = bytes, .over = false, .failure = {}};
    return index;
  }

  const uint32_t rank_;
  std::vector<SocketLink> links_;       // by rank; the own one is closed
  std::deque<SocketMessage> messages_;  // links point to them
  std::vector<uint32_t> free_;
  std::string reason_;
};

}  // namespace

MakeMessagePort socket_port(const SocketRendezvous& rendezvous) {
  return [rendezvous] { return std::make_unique<SocketPort>(rendezvous.rank, meet(rendezvous)); };
}

}  // namespace terrace
