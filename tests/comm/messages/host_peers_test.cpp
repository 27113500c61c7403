#include <terrace/comm/messages/host_peers.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/messages/message_communicator.h>

#include "comm/rank_worlds.h"
#include "comm/thread_ports.h"
#include "support/expect_error.h"

namespace terrace::host_peers_test {
namespace {

using testing::expect_error;
using testing::MessageRanks;
using testing::on_ranks;
using testing::read_all_of;
using testing::ReadersOfRanks;
using testing::ThreadPorts;

constexpr std::byte kOurs{7};
constexpr uint32_t kTag = 3 * kLaneCount;  // of introductions

// An all-gather of two ranks; a part holds the number of its rank and one more.
struct Gathering {
  Gathering(Communicator& mine, uint64_t part_bytes) : whole(2 * part_bytes) {
    std::fill_n(whole.begin() + static_cast<ptrdiff_t>(mine.rank() * part_bytes), part_bytes,
                std::byte(mine.rank() + 1));
    done.begin();
    mine.all_gather(Lane::gather, whole, part_bytes, nullptr, done, {"parameters", 1, 2});
  }
  bool whole_is_right() const {
    const auto middle = whole.begin() + static_cast<ptrdiff_t>(whole.size() / 2);
    return std::all_of(whole.begin(), middle, [](std::byte one) { return one == std::byte{1}; }) &&
           std::all_of(middle, whole.end(), [](std::byte one) { return one == std::byte{2}; });
  }
  std::vector<std::byte> whole;
  Event done;
};

// The reads of a rank that are not tries of introductions.
bool is_of_part(std::span<const MemoryPiece> pieces) {
  return pieces.size() > 1;
}

TEST(HostPeers, ReadPartsWhereTheyLieAndSayThatTheyHave) {
  MessageRanks world({.ranks = 2}, {}, read_all_of);
  on_ranks(world, [](Communicator& mine) {
    Gathering gathering(mine, 100'000);
    gathering.done.wait();
    EXPECT_TRUE(gathering.whole_is_right());
    EXPECT_EQ(mine.counters()[index_of(Lane::gather)], (LaneCounters{1, 100'000, 100'000}));
  });
  EXPECT_EQ(world.ports().sent_messages(),
            2u * (2 + 2));  // two to be introduced, a header, a word of the read
  EXPECT_LT(world.ports().longest_message_bytes(), 1000u);
  EXPECT_EQ(world.rank(0).host_sentence(), "ranks of this host read each other's memory (process_vm_readv)");
}

TEST(HostPeers, ReadInPieces) {
  std::atomic<uint32_t> read_pieces{0};
  MessageRanks world({.ranks = 2}, {}, [&](uint32_t) -> ReadProcess {
    return [&](uint32_t process, std::span<const MemoryPiece> pieces) {
      if (is_of_part(pieces)) ++read_pieces;
      return read_process_memory(process, pieces);
    };
  });
  on_ranks(world, [](Communicator& mine) {
    const uint64_t bytes = (uint64_t{9} << 20);
    std::vector<std::byte> out(bytes), in(bytes);
    for (uint64_t at = 0; at < bytes; ++at) out[at] = std::byte(at % 251 + mine.rank());
    std::array<CommPart, 2> to, from;
    to[1 - mine.rank()] = {out.data(), bytes};
    from[1 - mine.rank()] = {in.data(), bytes};
    Event done;
    done.begin();
    mine.exchange(Lane::exchange, to, from, nullptr, done, {"gradients", 1, 2});
    done.wait();
    for (uint64_t at = 0; at < bytes; at += 97) ASSERT_EQ(in[at], std::byte(at % 251 + 1 - mine.rank()));
  });
  EXPECT_EQ(read_pieces, 2u * 3);
}

TEST(HostPeers, SendSmallPartsAsMessages) {
  ThreadPorts ports({.ranks = 2});
  std::vector<std::unique_ptr<MessageCommunicator>> ranks;
  for (uint32_t r = 0; r < 2; ++r)
    ranks.push_back(
        std::make_unique<MessageCommunicator>(r, testing::places_on_one_host(2), ports.port_of(r)));
  for (const uint64_t bytes : {kLeastReadBytes - 1, kLeastReadBytes}) {
    Gathering first(*ranks[0], bytes), second(*ranks[1], bytes);
    first.done.wait(), second.done.wait();
    EXPECT_TRUE(first.whole_is_right() && second.whole_is_right());
    EXPECT_EQ(ports.longest_message_bytes(), kLeastReadBytes - 1);
  }
}

TEST(HostPeers, AreSentMessagesWhereTheyMayNotReadAndSayWhy) {
  MessageRanks world({.ranks = 2}, {}, [](uint32_t rank) -> ReadProcess {
    if (rank == 0) return read_process_memory;
    return [](uint32_t, std::span<const MemoryPiece>) { return int64_t{-EPERM}; };
  });
  on_ranks(world, [](Communicator& mine) {
    Gathering gathering(mine, 5000);
    gathering.done.wait();
    EXPECT_TRUE(gathering.whole_is_right());
    EXPECT_EQ(mine.counters()[index_of(Lane::gather)], (LaneCounters{1, 5000, 5000}));
  });
  EXPECT_EQ(world.ports().longest_message_bytes(), 5000u);
  const std::string refused = world.rank(1).host_sentence(), told = world.rank(0).host_sentence();
  for (const char* const said :
       {"exchange messages", "rank 1 cannot read that of rank 0", "Operation not permitted", "SYS_PTRACE"})
    EXPECT_NE(refused.find(said), std::string::npos) << refused;
  EXPECT_NE(told.find("rank 1 cannot read that of rank 0"), std::string::npos) << told;
}

TEST(HostPeers, NameTheRankWhoseMemoryIsGone) {
  struct Reading {
    int64_t result;
    const char* said;
  };
  for (const Reading& reading : {Reading{-ESRCH, "No such process"}, Reading{-EFAULT, "Bad address"},
                                 Reading{100, "100 bytes of 5008"}}) {
    MessageRanks world({.ranks = 2}, {}, [&](uint32_t rank) -> ReadProcess {
      if (rank == 1) return read_process_memory;
      return [&](uint32_t process, std::span<const MemoryPiece> pieces) {
        return is_of_part(pieces) ? reading.result : read_process_memory(process, pieces);
      };
    });
    Gathering mine(world.rank(0), 5000), others(world.rank(1), 5000);
    expect_error(ErrorKind::peer, {"rank 1", "its memory cannot be read", reading.said, "has left"},
                 [&] { mine.done.wait(); });
    world.end(0);
    expect_error(ErrorKind::peer, {"rank 0", "has left"}, [&] { others.done.wait(); });
  }
}

// An exchange in which rank 1 has nothing for rank 0, which uses its memory for something else as soon as it
// may.
struct OneWay {
  OneWay(Communicator& owner, Communicator& reader) {
    to[1] = {memory.data(), memory.size()};
    from[0] = {arrived.data(), arrived.size()};
    owner_done.begin(), reader_done.begin();
    owner.exchange(Lane::exchange, to, nothing_in, nullptr, owner_done, {"gradients", 1, 2});
    reader.exchange(Lane::exchange, nothing_out, from, nullptr, reader_done, {"gradients", 1, 2});
    user = std::jthread([this] {
      owner_done.wait_done();
      std::ranges::fill(memory, std::byte{9});
      reused = true;
    });
  }
  std::atomic<bool> reused{false};
  std::vector<std::byte> memory = std::vector<std::byte>(5000, kOurs), arrived = std::vector<std::byte>(5000);
  std::array<CommPart, 2> to, nothing_in, nothing_out, from;
  Event owner_done, reader_done;
  std::jthread user;
};

// A world whose rank 1 calls `before` before it reads a part.
ReadersOfRanks second_calls(const std::function<void()>& before) {
  return [before](uint32_t rank) -> ReadProcess {
    if (rank == 0) return read_process_memory;
    return [before](uint32_t process, std::span<const MemoryPiece> pieces) {
      if (is_of_part(pieces)) before();
      return read_process_memory(process, pieces);
    };
  };
}

// The reader is late until the owner has looked often for its word, or has gone on without it.
TEST(HostPeers, ArePromisedTheMemoryUntilTheyHaveRead) {
  MessageRanks* ranks = nullptr;
  std::atomic<OneWay*> one_way = nullptr;
  MessageRanks world(
      {.ranks = 2}, {}, second_calls([&] {
        const uint64_t looks = ranks->ports().tests();
        while (one_way == nullptr || (!one_way.load()->reused && ranks->ports().tests() < looks + 30))
          std::this_thread::yield();
      }));
  ranks = &world;
  OneWay exchange(world.rank(0), world.rank(1));
  one_way = &exchange;
  exchange.reader_done.wait();
  EXPECT_EQ(std::ranges::count(exchange.arrived, kOurs), 5000);
}

// The owner is told of a loss while the reader has not read yet.
TEST(HostPeers, TakeNothingOfARankThatHasGivenUp) {
  MessageRanks* ranks = nullptr;
  std::atomic<OneWay*> one_way = nullptr;
  MessageRanks world({.ranks = 2}, {}, second_calls([&] {
                       ranks->rank(0).lose(0, "its drive is full");
                       while (one_way == nullptr || !one_way.load()->reused) std::this_thread::yield();
                       ranks->lose(0, "its process has ended");
                     }));
  ranks = &world;
  OneWay exchange(world.rank(0), world.rank(1));
  one_way = &exchange;
  expect_error(ErrorKind::peer, {"rank 0", "it has given up"}, [&] { exchange.reader_done.wait(); });
}

// --- Introductions ---

// Introduces rank 0 to a rank 1 that says `hello` and that it reads, or not.
void introduce(HostPeers& peers, ThreadPorts& ports, const PeerHello& hello, std::byte reads) {
  const std::unique_ptr<MessagePort> mine = ports.port_of(0)(), other = ports.port_of(1)();
  PeerHello heard;
  std::byte found{};
  for (const MessageRequest request :
       {other->start_send(0, kTag, std::as_bytes(std::span(&hello, 1))),
        other->start_receive(0, kTag, std::as_writable_bytes(std::span(&heard, 1))),
        other->start_send(0, kTag, {&reads, 1}), other->start_receive(0, kTag, {&found, 1})}) {
    while (other->test(request) == MessageState::pending) peers.advance(*mine);
  }
  while (!peers.introduced()) peers.advance(*mine);
}

struct Introduced {
  explicit Introduced(PeerHello hello) : word(11) {
    hello.process = static_cast<uint64_t>(getpid());
    hello.word = word;
    hello.word_address = reinterpret_cast<uint64_t>(&word);
    ThreadPorts ports({.ranks = 2});
    introduce(peers, ports, hello, std::byte{1});
  }
  uint64_t word;
  HostPeers peers{0, 2, {.read_process = read_process_memory}, 1000};
};

TEST(HostPeers, AreRanksOfOneHostAndOneNamespaceOfProcesses) {
  const uint64_t host = host_hash(), processes = process_namespace();
  ASSERT_NE(host, 0u);
  Introduced peer({.host = host, .process_namespace = processes});
  EXPECT_TRUE(peer.peers.reads(1, 1) && peer.peers.is_read_by(1, 1));
  EXPECT_FALSE(peer.peers.reads(1, 0) || peer.peers.is_read_by(1, 0));

  Introduced elsewhere({.host = host + 1, .process_namespace = processes});
  EXPECT_FALSE(elsewhere.peers.reads(1, 1));
  EXPECT_EQ(elsewhere.peers.sentence(), "");

  Introduced contained({.host = host, .process_namespace = processes + 1});
  EXPECT_FALSE(contained.peers.reads(1, 1));
  EXPECT_NE(contained.peers.sentence().find("another PID namespace"), std::string::npos);
}

TEST(HostPeers, ReadNoProcessThatHasAnothersNumber) {
  Introduced peer({.host = host_hash(), .process_namespace = process_namespace()});
  std::array<std::byte, 4> there{kOurs, kOurs, kOurs, kOurs}, here{};
  const uint64_t address = reinterpret_cast<uint64_t>(there.data());
  peer.peers.read(1, address, here);
  EXPECT_EQ(here, there);
  peer.word = 12;
  EXPECT_THROW(peer.peers.read(1, address, here), PeerLoss);
}

TEST(HostPeers, MissARankOfAnotherVersion) {
  ThreadPorts ports({.ranks = 2});
  const std::unique_ptr<MessagePort> other = ports.port_of(1)();
  MessageCommunicator mine(0, testing::places_on_one_host(2), ports.port_of(0));
  Gathering gathering(mine, 10);
  const PeerHello hello{.magic = 5};
  PeerHello heard;
  for (const MessageRequest request :
       {other->start_receive(0, kTag, std::as_writable_bytes(std::span(&heard, 1))),
        other->start_send(0, kTag, std::as_bytes(std::span(&hello, 1)))}) {
    while (other->test(request) == MessageState::pending) std::this_thread::yield();
  }
  expect_error(ErrorKind::peer, {"rank 1", "another version"}, [&] { gathering.done.wait(); });
}

}  // namespace
}  // namespace terrace::host_peers_test
