#include <terrace/comm/messages/message_communicator.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <terrace/base/error.h>

#include "comm/rank_worlds.h"
#include "comm/thread_ports.h"
#include "support/allocation_counter.h"
#include "support/expect_error.h"

namespace terrace::message_communicator_test {
namespace {

using testing::expect_error;
using testing::MessageRanks;
using testing::on_ranks;
using testing::places_on_one_host;
using testing::ThreadPorts;

constexpr uint64_t kHeaderBytesOfTwo = 784 + 2 * 24;

// An all-gather whose parts hold the number of their rank and one more.
struct Gathering {
  Gathering(Communicator& mine, uint64_t part_bytes, const Event* after = nullptr)
      : whole(mine.size() * part_bytes) {
    std::fill_n(whole.begin() + static_cast<ptrdiff_t>(mine.rank() * part_bytes), part_bytes,
                std::byte(mine.rank() + 1));
    done.begin();
    mine.all_gather(Lane::gather, whole, part_bytes, after, done, {"parameters", 1, 2});
  }
  std::vector<std::byte> whole;
  Event done;
};

TEST(MessageCommunicator, MovesPartsInPiecesThatThePortAllows) {
  MessageRanks world({.ranks = 2}, {.max_message_bytes = 1000});
  on_ranks(world, [](Communicator& mine) {
    Gathering gathering(mine, 4001);
    gathering.done.wait();
    for (uint32_t r = 0; r < 2; ++r) {
      const std::span<std::byte> part = std::span(gathering.whole).subspan(r * 4001, 4001);
      EXPECT_EQ(std::ranges::count(part, std::byte(r + 1)), 4001);
    }
  });
  EXPECT_EQ(world.ports().longest_message_bytes(), 1000u);
  EXPECT_EQ(world.ports().sent_messages(),
            2u * (1 + 5));  // of each rank: its header, and its part in five pieces
}

TEST(MessageCommunicator, SendsNoMessageForAPartThatIsAbsentOrEmpty) {
  MessageRanks world({.ranks = 2}, {});
  on_ranks(world, [](Communicator& mine) {
    const uint32_t other = 1 - mine.rank();
    std::array<std::byte, 8> out{}, in{};
    std::array<CommPart, 2> to, from;
    const uint64_t bytes = mine.rank() == 0 ? 8 : 0;
    to[other] = {out.data(), bytes, true};
    from[other] = {in.data(), 8 - bytes};
    if (mine.rank() == 1) to[other] = {};
    Event done;
    done.begin();
    mine.exchange(Lane::exchange, to, from, nullptr, done, {});
    done.wait();
    EXPECT_EQ(from[other].absent, mine.rank() == 1);
    EXPECT_EQ(mine.counters()[index_of(Lane::exchange)], (LaneCounters{1, 0, 0}));
  });
  EXPECT_EQ(world.ports().sent_messages(), 2u);
  EXPECT_EQ(world.ports().longest_message_bytes(), kHeaderBytesOfTwo);
}

// More ranks than messages are in flight at a time, and headers in pieces.
TEST(MessageCommunicator, CarriesManyRanks) {
  MessageRanks world({.ranks = 12}, {.max_message_bytes = 300, .latest_looks = 5, .copies_some = true});
  on_ranks(world, [](Communicator& mine) {
    for (int round = 0; round < 3; ++round) {
      Gathering gathering(mine, 1000);
      gathering.done.wait();
      for (uint32_t at = 0; at < 12'000; ++at) EXPECT_EQ(gathering.whole[at], std::byte(at / 1000 + 1));
    }
  });
}

// All lanes at once, with operations waiting behind each other.
TEST(MessageCommunicator, KeepsTheLanesApart) {
  MessageRanks world({.ranks = 3, .queue_depth = 2}, {.max_message_bytes = 500, .latest_looks = 4});
  on_ranks(world, [](Communicator& mine) {
    std::jthread committer([&] {
      for (uint32_t round = 0; round < 20; ++round) {
        const std::byte word{static_cast<uint8_t>(round + mine.rank())};
        std::array<std::byte, 3> words{};
        mine.ballot(Lane::commit, std::span(&word, 1), words);
        for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(words[r], std::byte(round + r));
      }
    });
    std::vector<std::unique_ptr<Gathering>> gatherings;
    for (uint32_t round = 0; round < 20; ++round) {
      gatherings.push_back(std::make_unique<Gathering>(mine, 700));
      std::vector<std::byte> out(100 * 3, std::byte(mine.rank() + round)), in(100 * 3);
      std::vector<CommPart> to, from;
      for (uint32_t r = 0; r < 3; ++r) {
        to.push_back({out.data() + 100 * r, 100});
        from.push_back({in.data() + 100 * r, 100});
      }
      Event done;
      done.begin();
      mine.exchange(Lane::exchange, to, from, nullptr, done, {"gradients", round, 0});
      done.wait();
      for (uint32_t r = 0; r < 3; ++r) {
        if (r == mine.rank()) continue;
        EXPECT_EQ(in[100 * r + 99], std::byte(r + round));
      }
    }
    for (const std::unique_ptr<Gathering>& gathering : gatherings) gathering->done.wait();
  });
}

TEST(MessageCommunicator, CutsTheTextOfAFailureThatIsTooLong) {
  MessageRanks world({.ranks = 2}, {});
  on_ranks(world, [](Communicator& mine) {
    std::string reason;
    for (int i = 0; i < 1000; ++i) reason += "\u00e9";
    Event read;
    read.begin();
    read.complete_one(mine.rank() == 1 ? std::make_exception_ptr(
                                             Error(ErrorKind::io, {"cannot read", "a file", reason, "look"}))
                                       : nullptr);
    Gathering gathering(mine, 1, &read);
    gathering.done.wait_done();
    if (mine.rank() != 0) return;
    expect_error(ErrorKind::peer, {"rank 1", "cannot read", "\u00e9\u00e9\n"},
                 [&] { gathering.done.wait(); });
  });
}

TEST(MessageCommunicator, FailsWhatWaitsInAllLanesWhereARankIsLost) {
  MessageRanks world({.ranks = 3}, {});
  Event asked;
  asked.begin(2);
  std::jthread loser([&] {
    asked.wait_done();
    world.lose(2, "the cable was cut");
  });
  on_ranks(world, [&](Communicator& mine) {
    if (mine.rank() == 2) return;
    const std::vector<std::string> said{"rank 2", "has left", "the cable was cut"};
    std::jthread voter([&] {
      std::array<std::byte, 3> words{};
      expect_error(ErrorKind::peer, said,
                   [&] { mine.ballot(Lane::commit, std::span(words).first(1), words); });
    });
    Gathering first(mine, 5000), second(mine, 5000), third(mine, 5000);
    asked.complete_one();
    for (Gathering* gathering : {&first, &second, &third})
      expect_error(ErrorKind::peer, said, [&] { gathering->done.wait(); });
    Gathering later(mine, 5000);
    expect_error(ErrorKind::peer, said, [&] { later.done.wait(); });
    EXPECT_EQ(mine.counters()[index_of(Lane::gather)].operations, 0u);
  });
}

// Ports of a library that says nothing of a rank that hangs.
TEST(MessageCommunicator, FailsWhatWaitsWhereItIsToldOfALoss) {
  MessageRanks world({.ranks = 2}, {});
  Gathering gathering(world.rank(0), 10);
  world.rank(0).lose(1, "it answers nobody");
  world.rank(0).lose(0, "a later loss");
  expect_error(ErrorKind::peer, {"rank 1", "it answers nobody"}, [&] { gathering.done.wait(); });
  std::array<std::byte, 2> words{};
  expect_error(ErrorKind::peer, {"rank 1", "it answers nobody"},
               [&] { world.rank(0).ballot(Lane::control, std::span(words).first(1), words); });
}

TEST(MessageCommunicator, MissesARankThatEndsAndKeepsWhatThatHasSent) {
  MessageRanks world({.ranks = 2}, {.latest_looks = 50, .copies_some = true});
  Gathering mine(world.rank(0), 1000), others(world.rank(1), 1000);
  others.done.wait();
  world.end(1);
  mine.done.wait();
  EXPECT_EQ(mine.whole, others.whole);
  Gathering alone(world.rank(0), 1000);
  expect_error(ErrorKind::peer, {"rank 1", "has ended"}, [&] { alone.done.wait(); });
}

// Some have sent headers, some wait for events, some wait in queues.
TEST(MessageCommunicator, EndsWhileOperationsWaitInAllLanes) {
  Event read;
  read.begin();
  std::vector<std::unique_ptr<Gathering>> gatherings;
  std::array<CommPart, 2> to, from;
  std::array<Event, 3> exchanged;
  std::jthread reader;
  {
    MessageRanks world({.ranks = 2}, {});
    for (int i = 0; i < 3; ++i) gatherings.push_back(std::make_unique<Gathering>(world.rank(0), 10, &read));
    for (Event& done : exchanged) {
      done.begin();
      world.rank(0).exchange(Lane::exchange, to, from, nullptr, done, {});
    }
    reader = std::jthread([&] { read.complete_one(); });
    world.end(0);
  }
  for (const std::unique_ptr<Gathering>& gathering : gatherings)
    expect_error(ErrorKind::peer, {"rank 0", "its communicator has ended"}, [&] { gathering->done.wait(); });
  for (const Event& done : exchanged)
    expect_error(ErrorKind::peer, {"rank 0", "its communicator has ended"}, [&] { done.wait(); });
}

// What makes the own part still writes to the memory.
TEST(MessageCommunicator, FailsNothingBeforeItsEventIsDone) {
  MessageRanks world({.ranks = 2}, {});
  Event read;
  read.begin();
  Gathering waiting(world.rank(0), 10, &read);
  Event exchanged;
  exchanged.begin();
  std::array<CommPart, 2> to, from;
  world.rank(0).exchange(Lane::exchange, to, from, nullptr, exchanged, {});
  world.lose(1, "gone");
  exchanged.wait_done();
  EXPECT_FALSE(waiting.done.done());
  read.complete_one();
  expect_error(ErrorKind::peer, {"rank 1", "gone"}, [&] { waiting.done.wait(); });
}

TEST(MessageCommunicator, ThrowsWhatMakingItsPortThrows) {
  const MakeMessagePort make = []() -> std::unique_ptr<MessagePort> {
    throw Error(ErrorKind::io, {"cannot join", "the library", "it is not there", "install it"});
  };
  expect_error(ErrorKind::io, {"cannot join"},
               [&] { MessageCommunicator communicator(0, places_on_one_host(2), make); });
}

TEST(MessageCommunicator, RefusesThePortOfAnotherRank) {
  ThreadPorts ports({.ranks = 3});
  expect_error(ErrorKind::config, {"rank 1 of 2", "rank 2 of 3", "launcher"},
               [&] { MessageCommunicator communicator(1, places_on_one_host(2), ports.port_of(2)); });
}

TEST(MessageCommunicator, MissesARankWhoseMessagesCannotBeRead) {
  ThreadPorts ports({.ranks = 2});
  const std::unique_ptr<MessagePort> other = ports.port_of(1)();
  MessageCommunicator mine(0, places_on_one_host(2), ports.port_of(0), {.read_process = {}});
  Gathering gathering(mine, 10);
  std::vector<std::byte> sent(kHeaderBytesOfTwo, std::byte{7}), received(kHeaderBytesOfTwo);
  const MessageRequest receive = other->start_receive(0, 0, received), send = other->start_send(0, 0, sent);
  for (const MessageRequest request : {receive, send}) {
    while (other->test(request) == MessageState::pending) std::this_thread::yield();
  }
  expect_error(ErrorKind::peer, {"rank 1", "another version"}, [&] { gathering.done.wait(); });
}

TEST(MessageCommunicator, TestsNothingWhileNothingIsAskedFor) {
  MessageRanks world({.ranks = 2}, {});
  on_ranks(world, [](Communicator& mine) { Gathering(mine, 10).done.wait(); });
  const uint64_t before = world.ports().tests();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(world.ports().tests(), before);
}

void expect_no_allocation_once_warm(MessageRanks& world) {
  std::array<std::byte, 2> memory{}, arrives{};
  std::array<std::vector<std::byte>, 2> wholes{std::vector<std::byte>(8000), std::vector<std::byte>(8000)};
  std::array<std::array<CommPart, 2>, 2> to, from;
  std::array<Event, 2> gathered, exchanged;
  for (uint32_t r = 0; r < 2; ++r) {
    to[r][1 - r] = {&memory[r], 1};
    from[r][1 - r] = {&arrives[r], 1};
  }
  uint64_t warm = 0;
  for (int round = 0; round < 60; ++round) {
    if (round == 20) warm = testing::allocations_of_all_threads();
    for (uint32_t r = 0; r < 2; ++r) {
      gathered[r].begin(), exchanged[r].begin();
      world.rank(r).all_gather(Lane::gather, wholes[r], 4000, nullptr, gathered[r], {"parameters", 1, 2});
      world.rank(r).exchange(Lane::exchange, to[r], from[r], nullptr, exchanged[r], {"gradients", 1, 2});
    }
    for (uint32_t r = 0; r < 2; ++r) gathered[r].wait(), exchanged[r].wait();
  }
  EXPECT_EQ(testing::allocations_of_all_threads(), warm);
}

TEST(MessageCommunicator, AllocatesNothingOnceItIsWarm) {
  if (!testing::kCountsAllocations) GTEST_SKIP() << "the thread sanitizer counts no allocations";
  MessageRanks messages({.ranks = 2}, {.max_message_bytes = 1000});
  expect_no_allocation_once_warm(messages);
  MessageRanks peers({.ranks = 2}, {.max_message_bytes = 1000}, testing::read_all_of);
  expect_no_allocation_once_warm(peers);
}

}  // namespace
}  // namespace terrace::message_communicator_test
