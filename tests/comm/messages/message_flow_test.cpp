#include <terrace/comm/messages/message_flow.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/messages/played_port.h"

namespace terrace::message_flow_test {
namespace {

using ::testing::ElementsAre;
using testing::PlayedMessage;
using testing::PlayedPort;

constexpr uint32_t kTag = 5;
constexpr uint64_t kPieceBytes = 10;

// A flow of rank 1 of four.
struct FlowOfRank1 {
  explicit FlowOfRank1(FlowDirection direction) : flow(direction, 1, 4, kTag, kPieceBytes) {}
  // Parts of so many bytes for ranks 0, 2 and 3.
  void begin(uint64_t of_0, uint64_t of_2, uint64_t of_3) {
    flow.set_part(0, std::span(memory[0]).first(of_0));
    flow.set_part(2, std::span(memory[2]).first(of_2));
    flow.set_part(3, std::span(memory[3]).first(of_3));
    flow.begin();
  }
  std::vector<uint32_t> ranks() const {
    std::vector<uint32_t> others;
    for (const PlayedMessage& message : port.messages()) others.push_back(message.other);
    return others;
  }

  std::array<std::array<std::byte, 200>, 4> memory{};
  PlayedPort port{1, 4};
  MessageFlow flow;
};

TEST(MessageFlow, SendsToTheNextRankFirst) {
  FlowOfRank1 out(FlowDirection::send);
  out.begin(1, 2, 3);
  EXPECT_TRUE(out.flow.advance(out.port));
  EXPECT_THAT(out.ranks(), ElementsAre(2, 3, 0));
  for (const PlayedMessage& message : out.port.messages()) {
    EXPECT_EQ(message.direction, FlowDirection::send);
    EXPECT_EQ(message.tag, kTag);
    EXPECT_EQ(message.sent.data(), out.memory[message.other].data());
  }
}

TEST(MessageFlow, ReceivesFromTheRankBeforeFirst) {
  FlowOfRank1 in(FlowDirection::receive);
  in.begin(1, 2, 3);
  EXPECT_TRUE(in.flow.advance(in.port));
  EXPECT_THAT(in.ranks(), ElementsAre(0, 3, 2));
  for (const PlayedMessage& message : in.port.messages()) {
    EXPECT_EQ(message.direction, FlowDirection::receive);
    EXPECT_EQ(message.received.data(), in.memory[message.other].data());
  }
}

TEST(MessageFlow, MovesAPartInPiecesThatLieBehindEachOther) {
  FlowOfRank1 out(FlowDirection::send);
  out.begin(0, 25, 10);
  out.flow.advance(out.port);
  EXPECT_THAT(out.ranks(), ElementsAre(2, 2, 2, 3));
  uint64_t offset_bytes = 0;
  for (size_t at = 0; at < 3; ++at) {
    const PlayedMessage& piece = out.port.messages()[at];
    EXPECT_EQ(piece.sent.data(), out.memory[2].data() + offset_bytes);
    EXPECT_EQ(piece.bytes(), at < 2 ? kPieceBytes : 5);
    offset_bytes += piece.bytes();
  }
  EXPECT_EQ(out.port.messages()[3].bytes(), kPieceBytes);
}

TEST(MessageFlow, HasNoMessageForAnEmptyPart) {
  FlowOfRank1 out(FlowDirection::send);
  EXPECT_TRUE(out.flow.over()) << "before it begins";
  out.begin(0, 0, 0);
  EXPECT_TRUE(out.flow.over());
  EXPECT_FALSE(out.flow.advance(out.port));
  out.begin(0, 0, 4);
  out.flow.advance(out.port);
  EXPECT_THAT(out.ranks(), ElementsAre(3));
}

TEST(MessageFlow, KeepsEightPiecesUnderWayAndGoesOnAsTheyEnd) {
  FlowOfRank1 out(FlowDirection::send);
  out.begin(5, 70, 45);  // pieces: seven, five, one
  out.flow.advance(out.port);
  EXPECT_EQ(out.port.messages().size(), 8u);
  EXPECT_FALSE(out.flow.advance(out.port)) << "nothing has ended";
  out.port.finish(6);  // whichever ends first
  out.port.finish(2);
  EXPECT_TRUE(out.flow.advance(out.port));
  EXPECT_EQ(out.port.messages().size(), 10u);
  EXPECT_EQ(out.port.pending_count(), 8u);
  out.port.finish_all();
  out.flow.advance(out.port);
  EXPECT_THAT(out.ranks(), ElementsAre(2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 0));
}

TEST(MessageFlow, IsOverWhenItsLastMessageIsAndBeginsAgain) {
  FlowOfRank1 in(FlowDirection::receive);
  for (uint64_t round = 1; round <= 2; ++round) {
    in.begin(3, 0, 12);
    in.flow.advance(in.port);
    EXPECT_EQ(in.port.messages().size(), 3 * round);
    in.port.finish(3 * round - 3);
    in.port.finish(3 * round - 1);
    EXPECT_TRUE(in.flow.advance(in.port));
    EXPECT_FALSE(in.flow.over());
    in.port.finish_all();
    EXPECT_TRUE(in.flow.advance(in.port));
    EXPECT_TRUE(in.flow.over());
    EXPECT_FALSE(in.flow.advance(in.port)) << "once it is over";
  }
}

TEST(MessageFlow, ThrowsTheLossOfTheRankWhoseMessageFailed) {
  FlowOfRank1 out(FlowDirection::send);
  out.begin(1, 1, 1);
  out.flow.advance(out.port);
  out.port.finish(0);
  out.port.fail(1, "its cable is cut");
  try {
    out.flow.advance(out.port);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerLoss& loss) {
    EXPECT_EQ(loss.rank, 3u);
    EXPECT_EQ(loss.why, "its cable is cut");
  }
}

}  // namespace
}  // namespace terrace::message_flow_test
