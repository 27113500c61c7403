#include <terrace/comm/operations/communicator.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/error.h>

#include "comm/comm_faults.h"
#include "comm/rank_worlds.h"
#include "support/expect_error.h"

namespace terrace::communicator_test {
namespace {

using testing::expect_error;
using testing::on_ranks;
using testing::RankWorld;
using testing::RankWorldKind;
using testing::RankWorldOptions;

// What every back end promises.
class CommunicatorLaws : public ::testing::TestWithParam<RankWorldKind> {
 protected:
  static std::unique_ptr<RankWorld> world_of(const RankWorldOptions& options) {
    return GetParam().make(options);
  }
  static bool has_lanes_in_one_order() { return GetParam().name == testing::kNcclForBoth; }
};

INSTANTIATE_TEST_SUITE_P(BackEnds, CommunicatorLaws, ::testing::ValuesIn(testing::rank_world_kinds()),
                         [](const auto& kind) { return kind.param.name; });

// What rank `from` has for rank `to` in round `round`.
std::byte value(uint32_t from, uint32_t to, uint64_t round) {
  return static_cast<std::byte>(from * 31 + to * 7 + round * 3 + 1);
}

// Parts of sizes that all ranks know, some of them empty.
uint64_t bytes_of_part(uint32_t from, uint32_t to) {
  return (from * 3 + to) % 4 * 100;
}

struct Buffers {
  Buffers(const Communicator& ranks, uint64_t round) {
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      out.emplace_back(bytes_of_part(ranks.rank(), r), value(ranks.rank(), r, round));
      in.emplace_back(bytes_of_part(r, ranks.rank()), std::byte{0});
      to.push_back({out[r].data(), out[r].size()});
      from.push_back({in[r].data(), in[r].size()});
    }
  }
  std::vector<std::vector<std::byte>> out, in;
  std::vector<CommPart> to, from;
};

TEST_P(CommunicatorLaws, GathersThePartsOfAllRanksInTheirOrder) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    const std::unique_ptr<RankWorld> world = world_of({.ranks = ranks});
    on_ranks(*world, [](Communicator& mine) {
      for (uint64_t round = 0; round < 20; ++round) {
        std::vector<std::byte> whole(mine.size() * 1000);
        std::memset(whole.data() + mine.rank() * 1000, static_cast<int>(value(mine.rank(), 0, round)), 1000);
        Event done;
        done.begin();
        mine.all_gather(Lane::gather, whole, 1000, nullptr, done, {"parameters", 3, round});
        done.wait();
        for (uint32_t r = 0; r < mine.size(); ++r) {
          for (const size_t at : {0u, 999u}) EXPECT_EQ(whole[r * 1000 + at], value(r, 0, round));
        }
      }
      EXPECT_EQ(mine.counters()[index_of(Lane::gather)],
                (LaneCounters{20, 20'000 * (mine.size() - 1), 20'000 * (mine.size() - 1)}));
    });
  }
}

TEST_P(CommunicatorLaws, GivesEveryRankItsParts) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    const std::unique_ptr<RankWorld> world = world_of({.ranks = ranks});
    on_ranks(*world, [](Communicator& mine) {
      for (uint64_t round = 0; round < 20; ++round) {
        Buffers buffers(mine, round);
        Event done;
        done.begin();
        mine.exchange(Lane::exchange, buffers.to, buffers.from, nullptr, done, {"gradients", 1, round});
        done.wait();
        for (uint32_t r = 0; r < mine.size(); ++r) {
          if (r == mine.rank()) continue;
          EXPECT_EQ(buffers.in[r], std::vector(bytes_of_part(r, mine.rank()), value(r, mine.rank(), round)));
          EXPECT_FALSE(buffers.from[r].absent);
        }
      }
    });
  }
}

TEST_P(CommunicatorLaws, SaysWhichPartsThereAreNot) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
  on_ranks(*world, [](Communicator& mine) {
    Buffers buffers(mine, 0);
    for (CommPart& part : buffers.to) part.absent = mine.rank() == 1;
    Event done;
    done.begin();
    mine.exchange(Lane::exchange, buffers.to, buffers.from, nullptr, done, {});
    done.wait();
    for (uint32_t r = 0; r < 3; ++r) {
      if (r == mine.rank()) continue;
      EXPECT_EQ(buffers.from[r].absent, r == 1);
      const std::byte expected = r == 1 ? std::byte{0} : value(r, mine.rank(), 0);
      EXPECT_EQ(buffers.in[r], std::vector(bytes_of_part(r, mine.rank()), expected));
    }
    const LaneCounters counters = mine.counters()[index_of(Lane::exchange)];
    EXPECT_EQ(counters.out_bytes == 0, mine.rank() == 1);
  });
}

// Who hears of operations: of each one once, in their order.
class Heard final : public CopyObserver {
 public:
  uint64_t now_ns() const noexcept override { return ++asked_; }
  void copied(const CopyNote& note, uint64_t bytes, uint64_t begun_ns) noexcept override {
    operations.push_back({note.tag, bytes});
    EXPECT_TRUE(begun_ns > 0 && begun_ns <= asked_);
  }
  std::vector<std::pair<uint64_t, uint64_t>> operations;

 private:
  mutable std::atomic<uint64_t> asked_{0};
};

TEST_P(CommunicatorLaws, ReportsWhatEachRankReceivesToWhomItWantsToHear) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
  on_ranks(*world, [](Communicator& mine) {
    Heard heard;
    std::vector<std::pair<uint64_t, uint64_t>> expected;
    for (uint64_t round = 0; round < 4; ++round) {
      Buffers buffers(mine, round);
      for (CommPart& part : buffers.to) part.absent = round == 1 && mine.rank() == 1;
      CommNote note{"gradients", 1, round};
      if (round != 2 && mine.rank() != 2) note.recorded = {&heard, 70 + round};
      Event done;
      done.begin();
      const Lane lane = round == 3 ? Lane::gather : Lane::exchange;
      mine.exchange(lane, buffers.to, buffers.from, nullptr, done, note);
      done.wait();
      uint64_t bytes = 0;
      for (uint32_t r = 0; r < 3; ++r)
        bytes += r == mine.rank() || buffers.from[r].absent ? 0 : bytes_of_part(r, mine.rank());
      if (note.recorded.observer != nullptr) expected.emplace_back(70 + round, bytes);
    }
    EXPECT_EQ(heard.operations, expected) << mine.rank();
  });
}

TEST_P(CommunicatorLaws, TakesABallotOfEveryRanksWords) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 4});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t round = 0; round < 50; ++round) {
      const uint64_t word = mine.rank() * 1000 + round;
      std::vector<uint64_t> words(mine.size());
      mine.ballot(round % 2 == 0 ? Lane::control : Lane::commit, std::as_bytes(std::span(&word, 1)),
                  std::as_writable_bytes(std::span(words)));
      for (uint32_t r = 0; r < mine.size(); ++r) EXPECT_EQ(words[r], r * 1000 + round);
    }
  });
}

// What depends on earlier operations finds them done, however late each rank is.
TEST_P(CommunicatorLaws, KeepsTheOrderOfALaneAndWaitsForEvents) {
  for (const uint64_t seed : {1, 2, 3}) {
    CommFaults faults({}, 200'000, seed);
    const std::unique_ptr<RankWorld> world = world_of({.ranks = 3, .queue_depth = 4, .hook = &faults});
    on_ranks(*world, [](Communicator& mine) {
      constexpr uint64_t kRounds = 30;
      std::vector<std::vector<std::byte>> wholes(kRounds, std::vector<std::byte>(mine.size()));
      std::vector<Event> made(kRounds), gathered(kRounds);
      for (uint64_t round = 0; round < kRounds; ++round) {
        made[round].begin(), gathered[round].begin();
      }
      std::jthread maker([&] {
        for (uint64_t round = 0; round < kRounds; ++round) {
          wholes[round][mine.rank()] = value(mine.rank(), 0, round);
          made[round].complete_one();
        }
      });
      for (uint64_t round = 0; round < kRounds; ++round)
        mine.all_gather(Lane::gather, wholes[round], 1, &made[round], gathered[round],
                        {"parameters", 0, round});
      gathered.back().wait();
      for (uint64_t round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(gathered[round].done());
        for (uint32_t r = 0; r < mine.size(); ++r) EXPECT_EQ(wholes[round][r], value(r, 0, round));
      }
    });
  }
}

TEST_P(CommunicatorLaws, LanesDoNotWaitForEachOther) {
  if (has_lanes_in_one_order()) GTEST_SKIP() << "nccl_communicator_test.cpp has what is true of this one";
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 2});
  Event never_yet;
  never_yet.begin();
  on_ranks(*world, [&](Communicator& mine) {
    std::vector<std::byte> whole(2);
    Event gathered, exchanged;
    gathered.begin(), exchanged.begin();
    mine.all_gather(Lane::gather, whole, 1, mine.rank() == 0 ? &never_yet : nullptr, gathered, {});
    Buffers buffers(mine, 0);
    mine.exchange(Lane::exchange, buffers.to, buffers.from, nullptr, exchanged, {});
    exchanged.wait();
    EXPECT_FALSE(gathered.done());
    std::array<std::byte, 2> words{};
    mine.ballot(Lane::control, std::span(words).first(1), words);
    if (mine.rank() == 0) never_yet.complete_one();
    gathered.wait();
  });
}

// Ranks outside of a group neither get nor send anything, and nobody waits for another group.
TEST_P(CommunicatorLaws, MovesThePartsOfGroupsThatDoNotWaitForEachOther) {
  if (has_lanes_in_one_order()) GTEST_SKIP() << "one lane would wait for the other";
  constexpr HostLayout kHosts{6, 3};
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 6, .hosts = 3});
  Event never_yet;
  never_yet.begin();
  std::atomic<uint32_t> over{0};
  on_ranks(*world, [&](Communicator& mine) {
    Buffers late(mine, 90);
    Event late_done;
    late_done.begin();
    const RankGroup host = kHosts.on_host_of(mine.rank());
    mine.exchange_within(host, Lane::exchange, late.to, late.from, mine.rank() == 0 ? &never_yet : nullptr,
                         late_done, {"gradients", 1, 90});
    for (uint64_t round = 0; round < 6; ++round) {
      const RankGroup group = round % 2 == 0 ? kHosts.across_hosts_of(mine.rank()) : host;
      Buffers buffers(mine, round);
      Event done;
      done.begin();
      mine.exchange_within(group, Lane::gather, buffers.to, buffers.from, nullptr, done,
                           {"parameters", 1, round});
      done.wait();
      for (uint32_t r = 0; r < mine.size(); ++r) {
        if (r == mine.rank()) continue;
        const std::byte expected = group.has(r) ? value(r, mine.rank(), round) : std::byte{0};
        EXPECT_EQ(buffers.in[r], std::vector(bytes_of_part(r, mine.rank()), expected)) << r;
      }
    }
    if (host.first != 0) late_done.wait();
    if (++over == mine.size()) never_yet.complete_one();
    late_done.wait();
    uint64_t in_bytes = 0;
    for (const uint32_t r : {host.rank(0), host.rank(1)})
      in_bytes += r == mine.rank() ? 0 : bytes_of_part(r, mine.rank());
    EXPECT_EQ(mine.counters()[index_of(Lane::exchange)].in_bytes, in_bytes);
  });
}

TEST_P(CommunicatorLaws, FailsInItsGroupAlone) {
  CommFaults faults({{CommFaultKind::fail, Lane::exchange, 1, 0}});
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 4, .hosts = 2, .hook = &faults});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t round = 0; round < 2; ++round) {
      Buffers buffers(mine, round);
      Event done;
      done.begin();
      mine.exchange_within({mine.rank() < 2 ? 0u : 2u, 1, 2}, Lane::exchange, buffers.to, buffers.from,
                           nullptr, done, {"gradients", 1, round});
      done.wait_done();
      EXPECT_EQ(done.failed(), round == 0 && mine.rank() < 2);
    }
  });
}

TEST_P(CommunicatorLaws, FailsOnAllRanksWhereItFailsOnOne) {
  CommFaults faults({{CommFaultKind::fail, Lane::gather, 1, 2}});
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3, .hook = &faults});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t index = 0; index < 5; ++index) {
      std::vector<std::byte> whole(3);
      Event done;
      done.begin();
      mine.all_gather(Lane::gather, whole, 1, nullptr, done, {"parameters", 9, index});
      done.wait_done();
      EXPECT_EQ(done.failed(), index == 2) << index;
      if (index != 2) continue;
      const auto kind = mine.rank() == 1 ? ErrorKind::io : ErrorKind::peer;
      expect_error(kind, {"an injected fault", "all-gather 2", "chunk 9"}, [&] { done.wait(); });
      if (mine.rank() != 1) expect_error(kind, {"rank 1", "commit or checkpoint"}, [&] { done.wait(); });
    }
  });
}

TEST_P(CommunicatorLaws, PassesTheFailureOfAnEventOnToAll) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 2});
  on_ranks(*world, [](Communicator& mine) {
    Event read, done;
    read.begin(), done.begin();
    std::vector<std::byte> whole(2);
    mine.all_gather(Lane::gather, whole, 1, mine.rank() == 0 ? &read : nullptr, done, {"parameters", 4, 0});
    if (mine.rank() == 0) {
      read.complete_one(std::make_exception_ptr(
          Error(ErrorKind::io, {"cannot read", "a file", "EIO", "replace the drive"})));
    } else {
      read.complete_one();
    }
    expect_error(mine.rank() == 0 ? ErrorKind::io : ErrorKind::peer, {"EIO"}, [&] { done.wait(); });
    if (mine.rank() == 1) expect_error(ErrorKind::peer, {"rank 0"}, [&] { done.wait(); });
  });
}

TEST_P(CommunicatorLaws, NamesTheRankThatDoesSomethingElse) {
  struct Other {
    CommNote note;
    uint64_t bytes;
    const char* said;
  };
  for (const Other& other :
       {Other{{"gradients", 1, 5}, 8, "gradients"}, Other{{"parameters", 2, 5}, 8, "chunk 2"},
        Other{{"parameters", 1, 6}, 8, "after 6 decisions"}, Other{{"parameters", 1, 5}, 16, "16 bytes"}}) {
    const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
    on_ranks(*world, [&](Communicator& mine) {
      const bool differs = mine.rank() == 2;
      const uint64_t bytes = differs ? other.bytes : 8;
      std::vector<std::byte> whole(3 * bytes);
      Event done;
      done.begin();
      mine.all_gather(Lane::gather, whole, bytes, nullptr, done,
                      differs ? other.note : CommNote{"parameters", 1, 5});
      expect_error(ErrorKind::peer, {"rank 2", other.said, "same program"}, [&] { done.wait(); });
    });
  }
}

TEST_P(CommunicatorLaws, NamesBothOperationsAndGoesOnAfterwards) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t index = 0; index < 3; ++index) {
      std::vector<std::byte> whole(3);
      std::array<CommPart, 3> to, from;
      Event done;
      done.begin();
      if (mine.rank() == 1 && index == 1) {
        mine.exchange(Lane::gather, to, from, nullptr, done, {"gradients", 7, index});
      } else {
        mine.all_gather(Lane::gather, whole, 1, nullptr, done, {"parameters", 5, index});
      }
      done.wait_done();
      EXPECT_EQ(done.failed(), index == 1);
      if (index != 1) continue;
      expect_error(ErrorKind::peer,
                   {"rank 1", "rank 0", "exchange 1 of lane gather (gradients, chunk 7",
                    "all-gather 1 of lane gather (parameters, chunk 5"},
                   [&] { done.wait(); });
    }
    EXPECT_EQ(mine.counters()[index_of(Lane::gather)].operations, 2u);
  });
}

// The third rank agrees with both of the others, and still nothing has happened on it.
TEST_P(CommunicatorLaws, FailsOnAllRanksWhereTwoDifferInAPart) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
  on_ranks(*world, [](Communicator& mine) {
    Buffers buffers(mine, 0);
    if (mine.rank() == 1) --buffers.from[0].bytes;
    if (mine.rank() == 0) buffers.to[1].bytes = 300, buffers.out[1].resize(300);
    if (mine.rank() == 0) buffers.to[1].memory = buffers.out[1].data();
    Event done;
    done.begin();
    mine.exchange(Lane::exchange, buffers.to, buffers.from, nullptr, done, {"gradients", 1, 2});
    expect_error(ErrorKind::peer, {"rank 0", "sends 300 bytes", "rank 1 expects"}, [&] { done.wait(); });
    for (uint32_t r = 0; r < 3; ++r) {
      if (r == mine.rank()) continue;
      EXPECT_EQ(buffers.in[r], std::vector(bytes_of_part(r, mine.rank()), std::byte{0}));
    }
  });
}

TEST_P(CommunicatorLaws, SaysWhatFailedOnTheLowestRank) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 5});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t round = 0; round < 4; ++round) {
      Buffers buffers(mine, round);
      Event read, done;
      read.begin(), done.begin();
      const bool fails = round % 2 == 1 && (mine.rank() == 1 || mine.rank() == 3);
      mine.exchange(Lane::exchange, buffers.to, buffers.from, &read, done, {"gradients", 0, round});
      read.complete_one(
          fails ? std::make_exception_ptr(Error(ErrorKind::io, {"cannot read", "a file", "EIO", "look"}))
                : nullptr);
      done.wait_done();
      EXPECT_EQ(done.failed(), round % 2 == 1);
      if (done.failed() && mine.rank() != 1)
        expect_error(ErrorKind::peer, {"rank 1", "EIO", "exchange"}, [&] { done.wait(); });
      if (done.failed() && mine.rank() == 1) expect_error(ErrorKind::io, {"EIO"}, [&] { done.wait(); });
    }
  });
}

TEST_P(CommunicatorLaws, FailsAtOnceWhereARankHasLeft) {
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 3});
  on_ranks(*world, [&](Communicator& mine) {
    if (mine.rank() == 2) return world->lose(2, "its training failed");
    std::vector<std::byte> whole(3);
    for (int round = 0; round < 3; ++round) {
      Event done;
      done.begin();
      mine.all_gather(Lane::gather, whole, 1, nullptr, done, {"parameters", 0, 0});
      expect_error(ErrorKind::peer, {"rank 2", "has left", "its training failed"}, [&] { done.wait(); });
    }
    std::array<std::byte, 3> words{};
    expect_error(ErrorKind::peer, {"rank 2", "has left"},
                 [&] { mine.ballot(Lane::control, std::span(words).first(1), words); });
  });
}

TEST_P(CommunicatorLaws, EndsWhileOperationsWait) {
  Event done;
  std::vector<std::byte> whole(2);
  {
    const std::unique_ptr<RankWorld> world = world_of({.ranks = 2});
    done.begin();
    world->rank(0).all_gather(Lane::gather, whole, 1, nullptr, done, {});
  }
  EXPECT_TRUE(done.failed());
}

TEST_P(CommunicatorLaws, FlipsWhatOneRankReceivesWhereAFaultSaysSo) {
  CommFaults faults({{CommFaultKind::corrupt, Lane::exchange, 1, 1}});
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 2, .hook = &faults});
  on_ranks(*world, [](Communicator& mine) {
    for (uint64_t index = 0; index < 3; ++index) {
      std::byte out{5}, in{0};
      std::array<CommPart, 2> to, from;
      to[1 - mine.rank()] = {&out, 1};
      from[1 - mine.rank()] = {&in, 1};
      Event done;
      done.begin();
      mine.exchange(Lane::exchange, to, from, nullptr, done, {});
      done.wait();
      EXPECT_EQ(in, std::byte{5} ^ std::byte{mine.rank() == 1 && index == 1});
    }
  });
}

TEST_P(CommunicatorLaws, FlipsNothingWhereNothingIsReceived) {
  CommFaults faults({{CommFaultKind::corrupt, Lane::exchange, 0, 0}});
  const std::unique_ptr<RankWorld> world = world_of({.ranks = 2, .hook = &faults});
  on_ranks(*world, [](Communicator& mine) {
    std::array<CommPart, 2> to, from;
    Event done;
    done.begin();
    mine.exchange(Lane::exchange, to, from, nullptr, done, {});
    done.wait();
  });
}

}  // namespace
}  // namespace terrace::communicator_test
