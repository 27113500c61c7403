#include <terrace/comm/messages/message_lane.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "comm/messages/played_port.h"
#include "support/expect_error.h"

namespace terrace::message_lane_test {
namespace {

using testing::expect_error;
using testing::PlayedPort;

constexpr uint32_t kRanks = 2;
constexpr uint64_t kPartBytes = 6;
constexpr Lane kLane = Lane::gather;
constexpr uint32_t kHeaderTag = tag_of(kLane, LaneMessage::header);
constexpr uint32_t kPartTag = tag_of(kLane, LaneMessage::part);
constexpr FlowDirection kSend = FlowDirection::send, kReceive = FlowDirection::receive;

std::exception_ptr failure(const std::string& why) {
  return std::make_exception_ptr(std::runtime_error(why));
}

// Writes down what it hears and fails what it is told to.
struct PlayedHook final : CommHook {
  std::exception_ptr before(const CommOperation& operation) override {
    heard.push_back("before " + std::to_string(operation.index));
    return fails;
  }
  void after(const CommOperation& operation) override {
    heard.push_back("after " + std::to_string(operation.index) + (operation.done->done() ? " too late" : ""));
  }
  std::vector<std::string> heard;
  std::exception_ptr fails;
};

// One of the gatherings of a rank.
struct Gathering {
  CommOperation of(OperationBook& book, const Event* after = nullptr, uint32_t chunk = 1) {
    done.begin();
    return book.all_gather(kLane, whole, kPartBytes, after, done, {"parameters", chunk, 2});
  }
  std::array<std::byte, kRanks * kPartBytes> whole{};
  Event done;
};

// Rank 0 of two. What rank 1 does is played by its headers and parts.
class MessageLaneTest : public ::testing::Test {
 protected:
  // No event may end that waits for something.
  void TearDown() override { lane_.fail(1, left_run(1, "the test has ended")); }
  // Rank 1 sends the header of its next gathering, of that chunk.
  void send_header_of_1(uint32_t chunk = 1, const std::exception_ptr& failed = nullptr) {
    Gathering theirs;
    MessageHeaders headers(1, kRanks);
    headers.write(theirs.of(book_of_1_, nullptr, chunk), failed);
    theirs.done.complete_one();
    port_.arrive(port_.find(kReceive, 1, kHeaderTag), headers.of(1));
  }
  void take_header_of_0() { port_.finish(port_.find(kSend, 1, kHeaderTag)); }
  // Parts go and come.
  void move_parts(std::byte of_1) {
    std::array<std::byte, kPartBytes> part;
    part.fill(of_1);
    port_.finish(port_.find(kSend, 1, kPartTag));
    port_.arrive(port_.find(kReceive, 1, kPartTag), part);
  }
  size_t started() const { return port_.messages().size(); }

  PlayedPort port_{0, kRanks};
  HostPeers peers_{0, kRanks, {}, 1000};
  OperationBook book_{0, kRanks}, book_of_1_{1, kRanks};
  PlayedHook hook_;
  MessageLane lane_{kLane, 0, kRanks, 1000, peers_, &hook_, book_};
  Gathering first_, second_;
  Event filled_;  // that an operation may wait for
};

TEST_F(MessageLaneTest, MovesPartsWhenTheHeadersAreThere) {
  EXPECT_TRUE(lane_.idle() && lane_.has_room());
  EXPECT_FALSE(lane_.advance(port_));
  lane_.take(first_.of(book_));
  EXPECT_FALSE(lane_.idle() || lane_.has_room());
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_EQ(started(), 2u) << "headers alone";
  EXPECT_FALSE(lane_.advance(port_)) << "nothing has arrived";
  take_header_of_0();
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_EQ(started(), 2u) << "the other's header is missing";
  send_header_of_1();
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_EQ(started(), 4u);
  EXPECT_FALSE(first_.done.done());
  move_parts(std::byte{7});
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_TRUE(first_.done.done() && lane_.idle());
  EXPECT_NO_THROW(first_.done.wait());
  EXPECT_EQ(first_.whole[kPartBytes], std::byte{7});
  EXPECT_EQ(book_.counters()[index_of(kLane)], (LaneCounters{1, kPartBytes, kPartBytes}));
  EXPECT_THAT(hook_.heard, ::testing::ElementsAre("before 0", "after 0"));
}

TEST_F(MessageLaneTest, SaysNothingBeforeTheEventOfAnOperationIsDone) {
  filled_.begin();
  lane_.take(first_.of(book_, &filled_));
  EXPECT_FALSE(lane_.advance(port_));
  EXPECT_EQ(started(), 0u);
  EXPECT_TRUE(hook_.heard.empty());
  filled_.complete_one();
  EXPECT_TRUE(lane_.advance(port_));
  EXPECT_EQ(started(), 2u);
}

TEST_F(MessageLaneTest, ExchangesTheNextHeadersWhilePartsMoveAndKeepsTheOrder) {
  lane_.take(first_.of(book_));
  lane_.advance(port_);
  take_header_of_0(), send_header_of_1();
  lane_.advance(port_);
  ASSERT_TRUE(lane_.has_room());
  lane_.take(second_.of(book_, nullptr, 2));
  lane_.advance(port_);
  EXPECT_EQ(started(), 6u) << "the parts of the first and the headers of the second";
  take_header_of_0(), send_header_of_1(2);
  lane_.advance(port_);
  EXPECT_FALSE(lane_.advance(port_)) << "the first is not over";
  EXPECT_FALSE(first_.done.done() || second_.done.done());
  move_parts(std::byte{7});
  lane_.advance(port_);
  EXPECT_TRUE(first_.done.done());
  EXPECT_FALSE(second_.done.done());
  lane_.advance(port_);
  move_parts(std::byte{8});
  lane_.advance(port_);
  EXPECT_TRUE(second_.done.done());
  EXPECT_EQ(first_.whole[kPartBytes], std::byte{7});
  EXPECT_EQ(second_.whole[kPartBytes], std::byte{8});
}

// An operation that fails has no parts, and still waits for the one before it.
TEST_F(MessageLaneTest, FailsWhereRanksDifferAndGoesOn) {
  lane_.take(first_.of(book_));
  lane_.advance(port_);
  take_header_of_0(), send_header_of_1();
  lane_.advance(port_);
  lane_.take(second_.of(book_, nullptr, 2));
  lane_.advance(port_);
  take_header_of_0(), send_header_of_1(9);
  lane_.advance(port_);
  EXPECT_FALSE(second_.done.done()) << "the first is not over";
  move_parts(std::byte{7});
  lane_.advance(port_);
  EXPECT_NO_THROW(first_.done.wait());
  ASSERT_TRUE(second_.done.done());
  expect_error(ErrorKind::peer, {"rank 1", "chunk 9", "chunk 2"}, [&] { second_.done.wait(); });
  EXPECT_TRUE(lane_.idle());
  EXPECT_EQ(started(), 6u);
  EXPECT_EQ(book_.counters()[index_of(kLane)].operations, 1u);
  EXPECT_THAT(hook_.heard, ::testing::ElementsAre("before 0", "before 1", "after 0"));
}

TEST_F(MessageLaneTest, TellsTheOthersOfItsOwnFailure) {
  hook_.fails = failure("the drive is full");
  lane_.take(first_.of(book_));
  lane_.advance(port_);
  HeaderWords words;
  std::memcpy(&words, port_.messages()[port_.find(kSend, 1, kHeaderTag)].sent.data(), sizeof words);
  EXPECT_EQ(words.failed, 1);
  EXPECT_STREQ(words.text.data(), "the drive is full");
  take_header_of_0(), send_header_of_1();
  lane_.advance(port_);
  ASSERT_TRUE(first_.done.done());
  EXPECT_THROW(first_.done.wait(), std::runtime_error);
}

TEST_F(MessageLaneTest, FailsWithTheFailureOfAnotherRank) {
  lane_.take(first_.of(book_));
  lane_.advance(port_);
  take_header_of_0(), send_header_of_1(1, failure("no memory is left"));
  lane_.advance(port_);
  ASSERT_TRUE(first_.done.done());
  expect_error(ErrorKind::peer, {"rank 1", "no memory is left"}, [&] { first_.done.wait(); });
}

TEST_F(MessageLaneTest, FailsAllThatItHasTakenOfALoss) {
  lane_.take(first_.of(book_));
  lane_.advance(port_);
  take_header_of_0(), send_header_of_1();
  lane_.advance(port_);
  lane_.take(second_.of(book_, nullptr, 2));
  EXPECT_TRUE(lane_.fail(1, left_run(1, "its cable is cut")));
  for (Gathering* gathering : {&first_, &second_}) {
    ASSERT_TRUE(gathering->done.done());
    expect_error(ErrorKind::peer, {"rank 1", "its cable is cut"}, [&] { gathering->done.wait(); });
  }
  EXPECT_TRUE(lane_.idle());
  EXPECT_FALSE(lane_.fail(1, left_run(1, "its cable is cut")));
}

// What makes the own part still writes to the memory.
TEST_F(MessageLaneTest, FailsNothingBeforeItsEventIsDone) {
  filled_.begin();
  lane_.take(first_.of(book_, &filled_));
  EXPECT_FALSE(lane_.fail(1, left_run(1, "gone")));
  EXPECT_FALSE(first_.done.done() || lane_.idle());
  filled_.complete_one();
  EXPECT_TRUE(lane_.fail(1, left_run(1, "gone")));
  ASSERT_TRUE(first_.done.done());
  expect_error(ErrorKind::peer, {"rank 1", "gone"}, [&] { first_.done.wait(); });
}

}  // namespace
}  // namespace terrace::message_lane_test
