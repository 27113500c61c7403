#include <terrace/comm/messages/part_moves.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "comm/messages/played_port.h"

namespace terrace::part_moves_test {
namespace {

using testing::PlayedMessage;
using testing::PlayedPort;

constexpr uint32_t kRanks = 3;
constexpr uint64_t kPartBytes = 6;
constexpr uint32_t kPartTag = tag_of(Lane::exchange, LaneMessage::part);
constexpr uint32_t kHasReadTag = tag_of(Lane::exchange, LaneMessage::has_read);
constexpr FlowDirection kSend = FlowDirection::send, kReceive = FlowDirection::receive;

// What a rank has for all others, and what it gets of them.
struct RankParts {
  explicit RankParts(uint32_t number) : rank(number) {
    for (uint32_t other = 0; other < kRanks; ++other) {
      out[other].fill(std::byte(10 * rank + other));
      to[other] = {out[other].data(), kPartBytes};
      from[other] = {in[other].data(), kPartBytes};
    }
  }
  RankParts(const RankParts&) = delete;
  RankParts& operator=(const RankParts&) = delete;
  CommOperation exchange(RankGroup group = {0, 1, kRanks}) {
    return {.kind = CommKind::exchange,
            .lane = Lane::exchange,
            .rank = rank,
            .group = group,
            .to = to,
            .from = from};
  }
  const uint32_t rank;
  std::array<std::array<std::byte, kPartBytes>, kRanks> out{}, in{};
  std::array<CommPart, kRanks> to, from;
};

// Rank 0 of three, and what it would know of the others' operations by their headers.
class PartMovesTest : public ::testing::Test {
 protected:
  // The others tell rank 0 who they are: ranks of its host, whose memory is this process's; rank 2 may be of
  // another one.
  void introduce(HostPeers& peers, bool second_is_here = false) {
    peers.advance(port_);
    for (uint32_t other = 1; other < kRanks; ++other) {
      const PeerHello hello{.host = host_hash() + (other == 2 && !second_is_here),
                            .process_namespace = process_namespace(),
                            .process = static_cast<uint64_t>(getpid()),
                            .word_address = reinterpret_cast<uint64_t>(&words_[other]),
                            .word = words_[other]};
      port_.arrive(port_.find(kReceive, other, kIntroductionTag), std::as_bytes(std::span(&hello, 1)));
    }
    port_.finish_all();
    peers.advance(port_);  // hellos are there
    peers.advance(port_);
    const std::byte can_read{1}, second_can_read{second_is_here};
    port_.arrive(port_.find(kReceive, 1, kIntroductionTag), {&can_read, 1});
    port_.arrive(port_.find(kReceive, 2, kIntroductionTag), {&second_can_read, 1});
    port_.finish_all();
    peers.advance(port_);
    ASSERT_TRUE(peers.introduced());
    begun_ = port_.messages().size();
  }
  // Rank 0 begins, and knows the others' headers.
  void begin(PartMoves& moves, RankGroup group = {0, 1, kRanks}) {
    MessageHeaders headers(0, kRanks);
    mine_.from.fill({});
    for (uint32_t other = 0; other < kRanks; ++other)
      mine_.from[other] = {mine_.in[other].data(), kPartBytes};
    const CommOperation operation = mine_.exchange(group);
    headers.write(operation, nullptr);
    for (RankParts* other : {&first_, &second_}) {
      if (!group.has(other->rank)) continue;
      MessageHeaders theirs(other->rank, kRanks);
      theirs.write(other->exchange(group), nullptr);
      std::ranges::copy(theirs.of(other->rank), headers.of(other->rank).begin());
    }
    moves.begin(operation, headers);
  }
  // Messages that were started since the ranks know each other.
  size_t started() const { return port_.messages().size() - begun_; }

  static constexpr uint32_t kIntroductionTag = 3 * kLaneCount;
  PlayedPort port_{0, kRanks};
  size_t begun_ = 0;
  std::array<uint64_t, kRanks> words_{0, 11, 12};
  uint64_t reads_ = 0;
  RankParts mine_{0}, first_{1}, second_{2};
  HostPeers strangers_{0, kRanks, {}, 1000};
  // Reads of this process's memory that need no kernel.
  HostPeers peers_{0,
                   kRanks,
                   {.read_process =
                        [this](uint32_t, std::span<const MemoryPiece> pieces) {
                          int64_t bytes = 0;
                          for (const MemoryPiece& piece : pieces) {
                            std::memcpy(piece.into.data(), reinterpret_cast<const void*>(piece.address),
                                        piece.into.size());
                            bytes += static_cast<int64_t>(piece.into.size());
                          }
                          ++reads_;
                          return bytes;
                        }},
                   1000};
};

TEST_F(PartMovesTest, SendsAndReceivesWhatNobodyReads) {
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, strangers_);
  EXPECT_TRUE(moves.over());
  begin(moves);
  EXPECT_FALSE(moves.over());
  EXPECT_TRUE(moves.advance(port_));
  ASSERT_EQ(started(), 4u);
  for (uint32_t other = 1; other < kRanks; ++other) {
    const size_t sent = port_.find(kSend, other, kPartTag);
    EXPECT_EQ(port_.messages()[sent].sent.data(), mine_.out[other].data());
    port_.finish(sent);
    port_.arrive(port_.find(kReceive, other, kPartTag), other == 1 ? first_.out[0] : second_.out[0]);
  }
  EXPECT_TRUE(moves.advance(port_));
  EXPECT_TRUE(moves.over());
  EXPECT_EQ(mine_.in[1], first_.out[0]);
  EXPECT_EQ(mine_.in[2], second_.out[0]);
}

TEST_F(PartMovesTest, AreNotOverBeforeEveryPartHasGoneAndCome) {
  for (size_t last = 0; last < 4; ++last) {
    PartMoves moves(Lane::exchange, 0, kRanks, 1000, strangers_);
    begin(moves);
    moves.advance(port_);
    const size_t before = port_.messages().size() - 4;
    for (size_t at = 0; at < 4; ++at) {
      if (at != last) port_.finish(before + at);
    }
    moves.advance(port_);
    EXPECT_FALSE(moves.over()) << "without message " << last;
    port_.finish(before + last);
    moves.advance(port_);
    EXPECT_TRUE(moves.over());
  }
}

TEST_F(PartMovesTest, ReadWhereTheyLieAndSaySoAfterwards) {
  introduce(peers_);
  ASSERT_TRUE(peers_.reads(1, kPartBytes) && peers_.is_read_by(1, kPartBytes));
  ASSERT_FALSE(peers_.reads(2, kPartBytes) || peers_.is_read_by(2, kPartBytes));
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, peers_);
  begin(moves);
  reads_ = 0;
  EXPECT_TRUE(moves.advance(port_));
  EXPECT_EQ(reads_, 1u);
  EXPECT_EQ(mine_.in[1], first_.out[0]);
  moves.advance(port_);
  // Rank 2 gets and sends messages; to rank 1 goes a word that its part was read, and one comes of it.
  ASSERT_EQ(started(), 4u);
  EXPECT_EQ(port_.messages()[port_.find(kSend, 1, kHasReadTag)].bytes(), 1u);
  EXPECT_EQ(port_.messages()[port_.find(kSend, 2, kPartTag)].sent.data(), mine_.out[2].data());
  port_.arrive(port_.find(kReceive, 2, kPartTag), second_.out[0]);
  const size_t word = port_.find(kReceive, 1, kHasReadTag);
  port_.finish(port_.find(kSend, 1, kHasReadTag));
  port_.finish(port_.find(kSend, 2, kPartTag));
  moves.advance(port_);
  EXPECT_FALSE(moves.over()) << "rank 1 has not read yet";
  port_.finish(word);
  moves.advance(port_);
  EXPECT_TRUE(moves.over());
}

TEST_F(PartMovesTest, SayNothingBeforeAllIsRead) {
  introduce(peers_, true);
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, peers_);
  begin(moves);
  reads_ = 0;
  const auto said = [&] {
    return std::ranges::count_if(port_.messages(), [](const PlayedMessage& message) {
      return message.direction == kSend && message.tag == kHasReadTag;
    });
  };
  while (reads_ < 2) {
    EXPECT_EQ(said(), 0);
    ASSERT_TRUE(moves.advance(port_));
  }
  moves.advance(port_);
  EXPECT_EQ(said(), 2);
  EXPECT_EQ(mine_.in[2], second_.out[0]);
}

TEST_F(PartMovesTest, TellTheOperationWhatIsAbsentAndMoveNothingOfIt) {
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, strangers_);
  mine_.to[1].absent = true;
  second_.to[0].absent = true;
  begin(moves);
  EXPECT_FALSE(mine_.from[1].absent);
  EXPECT_TRUE(mine_.from[2].absent);
  moves.advance(port_);
  ASSERT_EQ(started(), 2u);
  port_.finish(port_.find(kReceive, 1, kPartTag));
  port_.finish(port_.find(kSend, 2, kPartTag));
  moves.advance(port_);
  EXPECT_TRUE(moves.over());
}

TEST_F(PartMovesTest, ForgetTheRanksThatAreInNoGroupOfTheNextOperation) {
  introduce(peers_);
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, peers_);
  begin(moves);
  moves.advance(port_);
  port_.finish_all();
  while (!moves.over()) {
    moves.advance(port_);
    port_.finish_all();
  }
  const size_t before = port_.messages().size();
  reads_ = 0;
  begin(moves, {0, 2, 2});  // with rank 2
  EXPECT_TRUE(moves.advance(port_));
  EXPECT_EQ(reads_, 0u);
  ASSERT_EQ(port_.messages().size(), before + 2);
  for (size_t at = before; at < before + 2; ++at) EXPECT_EQ(port_.messages()[at].other, 2u);
}

TEST_F(PartMovesTest, ThrowTheLossOfTheRankThatIsNotThere) {
  PartMoves moves(Lane::exchange, 0, kRanks, 1000, strangers_);
  begin(moves);
  moves.advance(port_);
  port_.fail(port_.find(kReceive, 2, kPartTag), "gone");
  EXPECT_THROW(moves.advance(port_), PeerLoss);
}

}  // namespace
}  // namespace terrace::part_moves_test
