// What NcclCommunicator does beside what all back ends promise (communicator_test.cpp).
#include <terrace/comm/nccl/nccl_communicator.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/error.h>

#include "comm/rank_worlds.h"
#include "support/expect_error.h"

namespace terrace::nccl_communicator_test {
namespace {

using testing::expect_error;
using testing::FakeNccl;
using testing::NcclRanks;
using testing::on_ranks;
using testing::PlayedNcclGpu;

constexpr uint32_t kRanks = 3;
constexpr uint64_t kBytes = 100;

// One operation of a rank, as an exchange or an all-gather, on the lane of NCCL.
struct Move {
  Move(Communicator& ranks, bool gathers) : whole(ranks.size() * kBytes), out(kBytes, value(ranks.rank())) {
    done.begin();
    std::memset(whole.data() + ranks.rank() * kBytes, static_cast<int>(value(ranks.rank())), kBytes);
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      to.push_back({out.data(), kBytes});
      from.push_back({whole.data() + r * kBytes, kBytes});
    }
    if (gathers) {
      ranks.all_gather(Lane::gather, whole, kBytes, nullptr, done, {"parameters", 4, 1});
    } else {
      ranks.exchange(Lane::gather, to, from, nullptr, done, {"parameters", 4, 1});
    }
  }
  ~Move() { done.wait_done(); }
  static std::byte value(uint32_t rank) { return static_cast<std::byte>(rank + 1); }
  void expect_there() const {
    done.wait();
    for (uint32_t r = 0; r < to.size(); ++r) EXPECT_EQ(whole[r * kBytes + kBytes - 1], value(r));
  }

  std::vector<std::byte> whole, out;
  std::vector<CommPart> to, from;
  Event done;
};

TEST(NcclCommunicator, MovesByNcclWhatLiesOnGpusAndNothingElse) {
  NcclRanks world({.ranks = kRanks}, {Lane::gather});
  on_ranks(world, [&](Communicator& mine) {
    Move(mine, true).expect_there();
    Move(mine, false).expect_there();
  });
  EXPECT_EQ(world.library().calls("ncclAllGather"), kRanks);
  EXPECT_EQ(world.library().calls("ncclSend"), kRanks * (kRanks - 1));
  EXPECT_EQ(world.library().calls("ncclRecv"), kRanks * (kRanks - 1));
  on_ranks(world, [&](Communicator& mine) {
    std::vector<std::byte> whole(kRanks * kBytes), out(kBytes, Move::value(mine.rank()));
    std::array<CommPart, kRanks> to, from;
    for (uint32_t r = 0; r < kRanks; ++r) {
      world.gpu(mine.rank()).put_on_host(whole.data() + r * kBytes);
      to[r] = {out.data(), kBytes};
      from[r] = {whole.data() + r * kBytes, kBytes};
    }
    world.gpu(mine.rank()).put_on_host(out.data());
    Event done;
    done.begin();
    mine.exchange(Lane::gather, to, from, nullptr, done, {"values", 4, 1});
    done.wait();
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (r == mine.rank()) continue;
      EXPECT_EQ(whole[r * kBytes], Move::value(r));
    }
    EXPECT_EQ(mine.counters()[index_of(Lane::gather)],
              (LaneCounters{3, 3 * kBytes * (kRanks - 1), 3 * kBytes * (kRanks - 1)}));
  });
  EXPECT_EQ(world.library().calls("ncclSend"), kRanks * (kRanks - 1));
}

// All find it, also the rank whose own parts are alike, and go on.
TEST(NcclCommunicator, RefusesPartsOnGpusAndOnHostsInOneOperation) {
  NcclRanks world({.ranks = kRanks}, {Lane::gather});
  on_ranks(world, [&](Communicator& mine) {
    std::vector<std::byte> whole(kRanks * kBytes);
    if (mine.rank() == 2) world.gpu(2).put_on_host(whole.data());
    Event done;
    done.begin();
    mine.all_gather(Lane::gather, whole, kBytes, nullptr, done, {"parameters", 4, 1});
    expect_error(ErrorKind::misuse, {"between a GPU and a host", "all-gather 0", "chunk 4"},
                 [&] { done.wait(); });
    Move(mine, false).expect_there();
  });
}

// Two orders of operations on one GPU could wait for each other.
TEST(NcclCommunicator, HasTheOperationsOfAllItsLanesInOneOrder) {
  NcclRanks world({.ranks = kRanks}, {Lane::gather, Lane::exchange});
  Event never_yet;
  never_yet.begin();
  std::atomic<uint32_t> seen{0};
  on_ranks(world, [&](Communicator& mine) {
    std::vector<std::byte> whole(kRanks * kBytes), out(kBytes);
    std::vector<CommPart> to(kRanks, {out.data(), kBytes}), from;
    for (uint32_t r = 0; r < kRanks; ++r) from.push_back({whole.data() + r * kBytes, kBytes});
    Event gathered, exchanged;
    gathered.begin(), exchanged.begin();
    mine.exchange(Lane::gather, to, from, mine.rank() == 0 ? &never_yet : nullptr, gathered,
                  {"parameters", 4, 1});
    mine.exchange(Lane::exchange, to, from, nullptr, exchanged, {"gradients", 4, 1});
    std::array<std::byte, kRanks> words{};
    mine.ballot(Lane::control, std::span(words).first(1), words);
    EXPECT_FALSE(gathered.done());
    EXPECT_FALSE(exchanged.done());
    EXPECT_EQ(world.library().calls("ncclSend"), 0u);
    if (++seen == kRanks) never_yet.complete_one();
    exchanged.wait();
    EXPECT_TRUE(gathered.done());
    for (const Lane lane : {Lane::gather, Lane::exchange})
      EXPECT_EQ(mine.counters()[index_of(lane)],
                (LaneCounters{1, kBytes * (kRanks - 1), kBytes * (kRanks - 1)}));
  });
  EXPECT_EQ(world.library().calls("ncclSend"), 2 * kRanks * (kRanks - 1));
}

// They find out before any byte moves, and none waits for ever.
TEST(NcclCommunicator, NamesTheRankThatHasItsLanesInAnotherOrder) {
  NcclRanks world({.ranks = 2}, {Lane::gather, Lane::exchange});
  on_ranks(world, [&](Communicator& mine) {
    std::vector<std::byte> whole(2 * kBytes), out(kBytes);
    std::vector<CommPart> to(2, {out.data(), kBytes}), from;
    for (uint32_t r = 0; r < 2; ++r) from.push_back({whole.data() + r * kBytes, kBytes});
    const Lane lane = mine.rank() == 0 ? Lane::gather : Lane::exchange;
    Event done;
    done.begin();
    mine.exchange(lane, to, from, nullptr, done, {"parameters", 4, 1});
    expect_error(ErrorKind::peer, {"rank 1"}, [&] { done.wait(); });
  });
  EXPECT_EQ(world.library().calls("ncclSend"), 0u);
}

TEST(NcclCommunicator, EndsAllRanksWhereACallFails) {
  for (const char* const call :
       {"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclAllGather", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(call);
    NcclRanks world({.ranks = kRanks}, {Lane::gather});
    const bool gathers = call == std::string("ncclAllGather");
    const bool is_anyones = call == std::string("ncclGroupStart");
    on_ranks(world, [&](Communicator& mine) { Move(mine, gathers).expect_there(); });
    world.library().fail(call, 1, 1, 2);
    std::array<std::string, kRanks> failures;
    on_ranks(world, [&](Communicator& mine) {
      for (int again = 0; again < 2; ++again) {
        const Move move(mine, gathers);
        try {
          move.done.wait();
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::peer);
          if (failures[mine.rank()].empty()) failures[mine.rank()] = error.what();
        }
        EXPECT_TRUE(move.done.failed() || again == 0);
      }
    });
    uint32_t named = 0;
    for (uint32_t r = 0; r < kRanks; ++r) {
      EXPECT_NE(failures[r], "") << r;
      const bool says =
          failures[r].find(std::string(call) + ": unhandled system error (2)") != std::string::npos;
      named += says ? 1 : 0;
      if (is_anyones || r != 1) continue;
      EXPECT_TRUE(says) << failures[r];
      EXPECT_NE(failures[r].find("rank 1"), std::string::npos) << failures[r];
    }
    EXPECT_GE(named, 1u);
    EXPECT_EQ(world.library().communicators(), 0u) << "all are aborted";
  }
}

// What makes a world of three whose ranks begin as `load` and the library's failures say.
std::array<std::string, kRanks> failures_to_begin(FakeNccl& library,
                                                  const std::function<void(uint32_t)>& loads) {
  ThreadWorld world({.ranks = kRanks});
  std::vector<PlayedNcclGpu> gpus(kRanks);
  std::array<std::string, kRanks> failures;
  {
    std::vector<std::jthread> threads;
    for (uint32_t r = 0; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        const LoadNccl load = [&, r] {
          loads(r);
          return FakeNccl::table();
        };
        try {
          const NcclCommunicator rank(world.rank(r), gpus[r], load);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::config);
          failures[r] = error.what();
        }
      });
  }
  EXPECT_EQ(library.communicators(), 0u);
  return failures;
}

TEST(NcclCommunicator, BeginsOnAllRanksOrOnNone) {
  const auto loads = [](uint32_t) {};
  {
    FakeNccl library;
    for (const std::string& failure : failures_to_begin(library, loads)) EXPECT_EQ(failure, "");
  }
  const auto expect_all = [](const std::array<std::string, kRanks>& failures, const std::string& rank,
                             const std::string& reason) {
    for (const std::string& failure : failures) {
      EXPECT_NE(failure.find(rank), std::string::npos) << failure;
      EXPECT_NE(failure.find(reason), std::string::npos) << failure;
    }
  };
  {
    FakeNccl library;
    const auto lacks = [](uint32_t rank) {
      if (rank == 2) throw Error(ErrorKind::config, {"cannot load NCCL", "libnccl.so.2", "No such file", ""});
    };
    expect_all(failures_to_begin(library, lacks), "rank 2", "No such file");
    EXPECT_EQ(library.calls("ncclCommInitRank"), 0u);
  }
  {
    FakeNccl library;
    library.fail("ncclGetUniqueId", 0, 1, 2);
    expect_all(failures_to_begin(library, loads), "rank 0", "ncclGetUniqueId: unhandled system error (2)");
  }
  for (const uint32_t rank : {0u, 1u}) {
    FakeNccl library;
    library.fail("ncclCommInitRank", rank, 1, 2);
    for (const std::string& failure : failures_to_begin(library, loads))
      EXPECT_NE(failure.find("ncclCommInitRank"), std::string::npos) << failure;
  }
}

// NCCL itself would wait for ever for a rank that is gone without a word.
TEST(NcclCommunicator, AbortsWhatWaitsForALostRank) {
  for (const bool in_a_call : {false, true}) {
    SCOPED_TRACE(in_a_call ? "in a call" : "on the stream");
    NcclRanks world({.ranks = kRanks}, {Lane::gather});
    if (in_a_call) {
      for (uint32_t r = 0; r < kRanks; ++r) world.library().block("ncclGroupEnd", r);
    } else {
      world.library().hold();
    }
    std::jthread loser([&] {
      while (world.library().calls("ncclGroupEnd") < kRanks) std::this_thread::yield();
      world.lose(2, "killed by signal 9");
    });
    on_ranks(world, [&](Communicator& mine) {
      const Move move(mine, false);
      // Rank 0 is told first; NCCL may tell the others that it has aborted before they are told why.
      std::vector<std::string> cause;
      if (mine.rank() == 0) cause = {"rank 2", "killed by signal 9"};
      expect_error(ErrorKind::peer, cause, [&] { move.done.wait(); });
    });
    EXPECT_EQ(world.library().communicators(), 0u);
  }
}

// No rank comes as far as NCCL, which would wait for the one that has left where a communicator is destroyed.
TEST(NcclCommunicator, AbortsWhereARankHasLeftBeforeAnyByteMoved) {
  NcclRanks world({.ranks = kRanks}, {Lane::gather});
  world.rank(2).leave("it was tired");
  for (uint32_t r = 0; r < 2; ++r) {
    std::vector<std::byte> whole(kRanks * kBytes);
    Event done;
    done.begin();
    world.rank(r).all_gather(Lane::gather, whole, kBytes, nullptr, done, {"parameters", 4, 1});
    expect_error(ErrorKind::peer, {"rank 2", "it was tired"}, [&] { done.wait(); });
  }
  EXPECT_EQ(world.library().communicators(), 1u) << "that of the rank which has left";
}

TEST(NcclCommunicator, EndsWhileBytesAreUnderWay) {
  Event done;
  done.begin();
  std::vector<std::byte> whole(2 * kBytes), other(2 * kBytes);
  Event others;
  others.begin();
  {
    NcclRanks world({.ranks = 2}, {Lane::gather});
    world.library().hold();
    world.rank(0).all_gather(Lane::gather, whole, kBytes, nullptr, done, {});
    world.rank(1).all_gather(Lane::gather, other, kBytes, nullptr, others, {});
    while (world.library().calls("ncclAllGather") < 2) std::this_thread::yield();
  }
  EXPECT_TRUE(done.failed());
  EXPECT_TRUE(others.failed());
}

}  // namespace
}  // namespace terrace::nccl_communicator_test
