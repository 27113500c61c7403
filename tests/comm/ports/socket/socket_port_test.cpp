#include <terrace/comm/ports/socket/socket_port.h>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/ports/socket/socket_link.h>

#include "comm/rank_worlds.h"
#include "support/allocation_counter.h"
#include "support/expect_error.h"

namespace terrace::socket_port_test {
namespace {

using testing::expect_error;
using testing::place_to_meet;
using testing::SocketRanks;

using Ports = std::vector<std::unique_ptr<MessagePort>>;

Ports ports_of(uint32_t ranks, bool over_tcp = false) {
  const ScratchFolder folder;
  const RendezvousPlace place = place_to_meet(folder, over_tcp);
  Ports ports(ranks);
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] { ports[r] = socket_port({.rank = r, .size = ranks, .place = place})(); });
  return ports;
}

// Tests the messages of the ports in turns until all are over; they must be done.
struct Awaited {
  Awaited(MessagePort& on, MessageRequest what) : port(&on), request(what) {}
  MessagePort* port;
  MessageRequest request;
};
void finish(std::vector<Awaited> awaited) {
  while (!awaited.empty()) {
    std::erase_if(awaited, [](const Awaited& one) {
      const MessageState state = one.port->test(one.request);
      EXPECT_NE(state, MessageState::failed) << one.port->reason();
      return state != MessageState::pending;
    });
  }
}

std::vector<std::byte> bytes_of(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<size_t>(seed));
  return bytes;
}

std::string failure_of(MessagePort& port, MessageRequest request) {
  MessageState state = MessageState::pending;
  while (state == MessageState::pending) state = port.test(request);
  EXPECT_EQ(state, MessageState::failed);
  return port.reason();
}

class SocketPorts : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sockets, SocketPorts, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Tcp" : "Paths"; });

// More of them than the connection and the receiver have room for.
TEST_P(SocketPorts, AMessageThatNobodyReceivesBlocksNoOtherTag) {
  Ports ports = ports_of(2, GetParam());
  const uint64_t longest = ports[0]->max_message_bytes();
  std::vector<std::vector<std::byte>> waiting, arrived;
  std::vector<Awaited> sends;
  for (int i = 0; i < 40; ++i) {
    waiting.push_back(bytes_of(i % 2 == 0 ? longest : SocketLink::kAheadBytes, i));
    arrived.emplace_back(waiting.back().size());
    sends.push_back({*ports[0], ports[0]->start_send(1, 4, waiting.back())});
  }
  const std::vector<std::byte> sent = bytes_of(longest, 99);
  std::vector<std::byte> received(longest);
  finish(
      {{*ports[0], ports[0]->start_send(1, 5, sent)}, {*ports[1], ports[1]->start_receive(0, 5, received)}});
  EXPECT_EQ(received, sent);
  for (std::vector<std::byte>& room : arrived)
    sends.push_back({*ports[1], ports[1]->start_receive(0, 4, room)});
  finish(sends);
  EXPECT_EQ(arrived, waiting);
}

TEST_P(SocketPorts, ShortMessagesGoAheadOfTheirReceives) {
  Ports ports = ports_of(2, GetParam());
  std::vector<std::vector<std::byte>> sent, received;
  for (int i = 0; i < 20; ++i) {
    sent.push_back(bytes_of(1000 + static_cast<size_t>(i), i));
    received.emplace_back(sent.back().size());
    finish({{*ports[0], ports[0]->start_send(1, 3, sent.back())}});
  }
  for (std::vector<std::byte>& room : received) finish({{*ports[1], ports[1]->start_receive(0, 3, room)}});
  EXPECT_EQ(received, sent);
}

TEST_P(SocketPorts, OnlySoMuchGoesAhead) {
  Ports ports = ports_of(2, GetParam());
  const std::vector<std::byte> sent = bytes_of(SocketLink::kAheadBytes, 1);
  std::vector<std::byte> received(sent.size());
  std::vector<Awaited> sends;
  for (int i = 0; i < 8; ++i) sends.push_back({*ports[0], ports[0]->start_send(1, 0, sent)});
  std::vector<std::byte> word{std::byte{1}}, other(1);
  finish({{*ports[0], ports[0]->start_send(1, 1, word)}, {*ports[1], ports[1]->start_receive(0, 1, other)}});
  std::erase_if(sends, [](const Awaited& one) { return one.port->test(one.request) == MessageState::done; });
  EXPECT_GE(sends.size(), 4u);
  for (int i = 0; i < 8; ++i) sends.push_back({*ports[1], ports[1]->start_receive(0, 0, received)});
  finish(sends);
  EXPECT_EQ(received, sent);
}

TEST_P(SocketPorts, WhatWasSentArrivesAfterTheSenderHasEnded) {
  Ports ports = ports_of(2, GetParam());
  const std::vector<std::byte> sent = bytes_of(5000, 1);
  std::vector<std::byte> received(5000), never(5000);
  finish({{*ports[1], ports[1]->start_send(0, 0, sent)}});
  const MessageRequest lost = ports[0]->start_send(1, 7, bytes_of(SocketLink::kAheadBytes + 1, 2));
  ports[1].reset();
  finish({{*ports[0], ports[0]->start_receive(1, 0, received)}});
  EXPECT_EQ(received, sent);
  EXPECT_EQ(failure_of(*ports[0], ports[0]->start_receive(1, 0, never)), "its port has ended");
  EXPECT_EQ(failure_of(*ports[0], lost), "its port has ended");
}

TEST_P(SocketPorts, SayWhyTheyGiveUp) {
  Ports ports = ports_of(3, GetParam());
  std::array<std::byte, 3> rooms{};
  const MessageRequest first = ports[0]->start_receive(2, 0, std::span(rooms).first(1));
  ports[2]->abandon(2, "its disk is full");
  EXPECT_EQ(failure_of(*ports[0], first), "its disk is full");
  // What a rank says of another one counts after that one's own words.
  ports[0]->abandon(2, "its disk is full");
  const MessageRequest of_first = ports[1]->start_receive(0, 0, std::span(rooms).subspan(1, 1));
  EXPECT_EQ(failure_of(*ports[1], ports[1]->start_receive(2, 0, std::span(rooms).last(1))),
            "its disk is full");
  EXPECT_EQ(ports[1]->test(of_first), MessageState::pending);
  EXPECT_EQ(failure_of(*ports[1], of_first), "it has given up because of rank 2: its disk is full");
}

TEST_P(SocketPorts, NameTheLengthsOfAMessageThatIsNotAsLongAsItsReceive) {
  for (const bool is_early : {false, true}) {
    Ports ports = ports_of(2, GetParam());
    std::vector<std::byte> room(20);
    MessageRequest receive{};
    if (!is_early) receive = ports[1]->start_receive(0, 0, room);
    finish({{*ports[0], ports[0]->start_send(1, 0, bytes_of(30, 1))}});
    std::byte word{1}, other{};
    if (is_early)
      finish({{*ports[0], ports[0]->start_send(1, 1, {&word, 1})},
              {*ports[1], ports[1]->start_receive(0, 1, {&other, 1})}});
    if (is_early) receive = ports[1]->start_receive(0, 0, room);
    EXPECT_EQ(failure_of(*ports[1], receive), "its message has 30 bytes, where 20 are expected");
  }
}

TEST(SocketPort, MissesARankThatDiesInTheMiddleOfAMessage) {
  std::array<int, 2> fds{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  SocketLink link{StreamSocket(fds[0]), 3};
  StreamSocket dying(fds[1]);
  std::vector<std::byte> room(100);
  SocketMessage receive{.other = 3, .memory = room.data(), .bytes = room.size(), .failure = {}};
  link.receive(receive);
  const SocketFrame frame{FrameKind::data, 0, 100};
  ASSERT_EQ(write(dying.fd(), &frame, sizeof frame), 16);
  link.advance();
  EXPECT_EQ(link.why_left(), "");
  dying.close();
  link.advance();
  EXPECT_EQ(link.why_left(), "its connection has ended in the middle of a message");
  EXPECT_FALSE(receive.over);
}

TEST(SocketPort, TakesNothingForAMessageThatIsNone) {
  const std::array<SocketFrame, 4> frames{SocketFrame{FrameKind{7}, 0, 0},
                                          {FrameKind::data, 0, 0},
                                          {FrameKind::data, 0, SocketLink::kAheadBytes + 1},
                                          {FrameKind::farewell, 0, 1 << 20}};
  for (const SocketFrame& frame : frames) {
    std::array<int, 2> fds{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    SocketLink link{StreamSocket(fds[0]), 3};
    const StreamSocket other(fds[1]);
    ASSERT_EQ(write(other.fd(), &frame, sizeof frame), 16);
    link.advance();
    EXPECT_NE(link.why_left(), "");
  }
}

// --- A rank that keeps to nothing, which a test plays ---

struct PlayedLink {
  PlayedLink() {
    std::array<int, 2> fds{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    link.emplace(StreamSocket(fds[0]), 3);
    other = StreamSocket(fds[1]);
  }
  // The link takes it in; false where it has lost the other side.
  bool sends(const SocketFrame& frame) {
    std::vector<std::byte> bytes(sizeof frame + (frame.kind == FrameKind::data ? frame.bytes : 0));
    std::memcpy(bytes.data(), &frame, sizeof frame);
    for (size_t sent = 0; sent < bytes.size() && link->why_left().empty();) {
      const ssize_t count = send(other.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count > 0) sent += static_cast<size_t>(count);
      link->advance();
    }
    link->advance();
    return link->why_left().empty();
  }
  std::optional<SocketLink> link;
  StreamSocket other;
};

// What an honest rank may send ahead is taken, to the byte, whatever its lengths; and not one message more.
TEST(SocketPort, HoldsARankToTheRoomThatItHasAhead) {
  constexpr uint64_t kRoom = SocketLink::kRoomAheadBytes, kOne = SocketLink::kRoomOfOneBytes;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1000}, kRoom / 4 - kOne, SocketLink::kAheadBytes}) {
    PlayedLink played;
    uint64_t taken = 0;
    while (taken + bytes + kOne <= kRoom) {
      ASSERT_TRUE(played.sends({FrameKind::data, 5, bytes})) << played.link->why_left();
      taken += bytes + kOne;
    }
    EXPECT_FALSE(played.sends({FrameKind::data, 6, bytes}));
    EXPECT_NE(played.link->why_left().find("it sends more than it was asked for"), std::string::npos);
    EXPECT_NE(played.link->why_left().find("room for 262144"), std::string::npos) << played.link->why_left();
  }
}

TEST(SocketPort, HasRoomAgainForWhatIsReceived) {
  PlayedLink played;
  std::vector<std::byte> room(60'000);
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(played.sends({FrameKind::data, 5, room.size()})) << i << played.link->why_left();
    SocketMessage receive{.other = 3, .tag = 5, .memory = room.data(), .bytes = room.size(), .failure = {}};
    played.link->receive(receive);
    EXPECT_TRUE(receive.over);
  }
}

TEST(SocketPort, TakesNoMoreTagsThanARunHas) {
  for (const FrameKind kind : {FrameKind::data, FrameKind::grant}) {
    PlayedLink played;
    uint32_t tag = 0;
    while (tag < 100'000 && played.sends({kind, tag, 1})) ++tag;
    EXPECT_LE(tag, SocketLink::kMostTags);
    EXPECT_EQ(played.link->why_left(), "it uses more tags than a run has");
  }
}

// Two links that send ahead what they may, to each other, are never in the way of that rule.
TEST_P(SocketPorts, TakeAllThatAnHonestRankSendsAhead) {
  Ports ports = ports_of(2, GetParam());
  uint32_t seed = 5;
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<Awaited> awaited;
  for (int i = 0; i < 3000; ++i) {
    seed = seed * 1664525 + 1013904223;
    const uint64_t bytes = i % 7 == 0 ? 1 + seed % ports[0]->max_message_bytes() : 1 + seed % 300;
    sent.push_back(bytes_of(bytes, i));
    received.emplace_back(bytes);
  }
  for (size_t i = 0; i < sent.size(); ++i)
    awaited.push_back({*ports[i % 2], ports[i % 2]->start_send(1 - i % 2, i % 11, sent[i])});
  for (int i = 0; i < 2000; ++i) {
    for (size_t which : {size_t{0}, size_t{1}})
      EXPECT_EQ(ports[which]->test(awaited[sent.size() - 1 - which].request), MessageState::pending);
  }
  for (size_t i = 0; i < sent.size(); ++i)
    awaited.push_back({*ports[1 - i % 2], ports[1 - i % 2]->start_receive(i % 2, i % 11, received[i])});
  finish(awaited);
  EXPECT_EQ(received, sent);
}

TEST(SocketPort, AllocatesNothingOnceItIsWarm) {
  if (!testing::kCountsAllocations) GTEST_SKIP() << "the thread sanitizer counts no allocations";
  Ports ports = ports_of(2);
  std::vector<std::byte> long_one(ports[0]->max_message_bytes()), long_room(long_one.size()), word(8),
      room(8);
  uint64_t warm = 0;
  for (int round = 0; round < 60; ++round) {
    if (round == 20) warm = testing::allocations_of_all_threads();
    const MessageRequest early = ports[0]->start_send(1, 1, word),
                         sent = ports[0]->start_send(1, 2, long_one);
    const MessageRequest received = ports[1]->start_receive(0, 2, long_room);
    const MessageRequest late = ports[1]->start_receive(0, 1, room);
    std::array<bool, 4> over{};
    while (std::ranges::count(over, true) < 4) {
      if (!over[0]) over[0] = ports[0]->test(early) == MessageState::done;
      if (!over[1]) over[1] = ports[0]->test(sent) == MessageState::done;
      if (!over[2]) over[2] = ports[1]->test(received) == MessageState::done;
      if (!over[3]) over[3] = ports[1]->test(late) == MessageState::done;
    }
  }
  EXPECT_EQ(testing::allocations_of_all_threads(), warm);
}

// Whoever is alive learns it from its own connection, whatever it waits for.
TEST(SocketPort, MissesARankThatEnds) {
  SocketRanks world({.ranks = 3}, false);
  std::array<Event, 2> gathered;
  std::array<std::vector<std::byte>, 2> wholes{std::vector<std::byte>(3), std::vector<std::byte>(3)};
  for (uint32_t r = 0; r < 2; ++r) {
    gathered[r].begin();
    world.rank(r).all_gather(Lane::gather, wholes[r], 1, nullptr, gathered[r], {});
  }
  world.end(2);
  for (const Event& one : gathered)
    expect_error(ErrorKind::peer, {"rank 2", "has left", "its port has ended"}, [&] { one.wait(); });
}

}  // namespace
}  // namespace terrace::socket_port_test
