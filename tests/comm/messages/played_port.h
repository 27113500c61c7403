// PlayedPort: the port of one rank, whose messages are over when the test says so, on one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/messages/message_port.h>

namespace terrace::testing {

struct PlayedMessage {
  FlowDirection direction = FlowDirection::send;
  uint32_t other = 0;
  uint32_t tag = 0;
  std::span<const std::byte> sent = {};
  std::span<std::byte> received = {};
  MessageState state = MessageState::pending;
  bool told = false;  // test() has said that it is over

  size_t bytes() const { return direction == FlowDirection::send ? sent.size() : received.size(); }
};

class PlayedPort final : public MessagePort {
 public:
  PlayedPort(uint32_t rank, uint32_t size) : rank_(rank), size_(size) {}

  // All messages in the order in which they were started.
  const std::vector<PlayedMessage>& messages() const { return messages_; }
  // What test() has not told to be over.
  size_t pending_count() const { return std::ranges::count(messages_, false, &PlayedMessage::told); }
  // The place of the first message of this kind that is not over. A test that finds none has failed.
  size_t find(FlowDirection direction, uint32_t other, uint32_t tag) const {
    for (size_t at = 0; at < messages_.size(); ++at) {
      const PlayedMessage& one = messages_[at];
      const bool is_open = one.state == MessageState::pending;
      if (is_open && one.direction == direction && one.other == other && one.tag == tag) return at;
    }
    ADD_FAILURE() << "no message with rank " << other << " and tag " << tag << " is under way";
    return messages_.size();
  }

  void finish(size_t at) {
    if (at < messages_.size()) messages_[at].state = MessageState::done;
  }
  void finish_all() {
    for (size_t at = 0; at < messages_.size(); ++at) finish(at);
  }
  void arrive(size_t at, std::span<const std::byte> bytes) {
    if (at >= messages_.size()) return;
    ASSERT_EQ(messages_[at].received.size(), bytes.size());
    std::ranges::copy(bytes, messages_[at].received.begin());
    finish(at);
  }
  void fail(size_t at, std::string why) {
    messages_[at].state = MessageState::failed;
    reason_ = std::move(why);
  }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return size_; }
  uint64_t max_message_bytes() const override { return uint64_t{1} << 20; }
  MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) override {
    return start({.other = to, .tag = tag, .sent = bytes});
  }
  MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) override {
    return start({.direction = FlowDirection::receive, .other = from, .tag = tag, .received = bytes});
  }
  MessageState test(MessageRequest request) override {
    PlayedMessage& message = messages_[static_cast<size_t>(request)];
    EXPECT_FALSE(message.told) << "a message is tested that is over";
    message.told = message.state != MessageState::pending;
    return message.state;
  }
  std::string reason() const override { return reason_; }
  void abandon(uint32_t, const std::string&) override {}

 private:
  MessageRequest start(PlayedMessage message) {
    messages_.push_back(message);
    return static_cast<MessageRequest>(messages_.size() - 1);
  }

  const uint32_t rank_;
  const uint32_t size_;
  std::vector<PlayedMessage> messages_;
  std::string reason_;
};

}  // namespace terrace::testing
