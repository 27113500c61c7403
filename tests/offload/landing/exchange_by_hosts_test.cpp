// An owner adds what one rank would add: the gradients of its own host one by one, and for each group of
// another host the sum that its ranks have made, in the order of micro-batches.
#include <terrace/offload/landing/exchange_by_hosts.h>

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include <terrace/comm/operations/dry_communicator.h>
#include <terrace/optimizer_cpu/quantization.h>

#include "comm/thread_world.h"
#include "offload/homes_rig.h"
#include "support/rank_threads.h"

namespace terrace::exchange_by_hosts_test {
namespace {

constexpr ChunkId kChunk{1};
constexpr HostLayout kHosts{4, 2};
constexpr uint64_t kTiles = 4;  // of a chunk: each rank owns one
constexpr uint64_t kPartBytes = kTileElements * sizeof(Bf16), kSumBytes = kTileElements * sizeof(float);

// One of four ranks on two hosts, with groups of two micro-batches.
struct Rank {
  Rank(Communicator& communicator, uint32_t micro_batches, uint32_t bits = 0, bool dry = false)
      : rig({.budget_bytes = 8 * kMiB}, {{"w", {HomesRig::kChunks * kTiles * kTileElements}, DataType::bf16}},
            kTiles, communicator.rank(), communicator.size()),
        rounds{micro_batches, kHosts.ranks, 2, kHosts.hosts, bits},
        incoming{rig.arena.take(kHosts.ranks * kPartBytes + 3 * kSumBytes, "what comes").data()},
        exchange({rig.shards, communicator, rig.watch, rounds, true, dry},
                 {rig.workers, InstructionSet::scalar, DataType::fp32, kSumBytes,
                  bits > 0 ? quantized_bytes(kTileElements, bits) : 0, kPartBytes},
                 incoming, 1),
        gradient(kTiles * kTileElements) {}

  // The gradient of this rank's micro-batch m is m + 1, in the whole chunk.
  void send(uint32_t round) {
    std::ranges::fill(gradient, to_bf16(static_cast<float>(rounds.number(round, rig.shards.rank()) + 1)));
    staged.memory = reinterpret_cast<std::byte*>(gradient.data());
    staged.runs = {{0, kTiles * kTileElements, round == 0}};
    const bool is_last = rounds.is_last(round);
    staged.landing = {kChunk, round, staged.runs, round == 0, is_last, true};
    staged.copied = &copied;
    exchange.send(staged);
  }
  struct Addition {
    uint32_t micro_batch;
    float value;
    bool is_group_sum, is_first, ends, is_last;
    bool operator==(const Addition&) const = default;
  };
  std::vector<Addition> add() {
    std::vector<Addition> added;
    exchange.add(staged, [&](const GradientLanding& own, const std::byte* from, bool is_last) {
      const float value = own.is_group_sum ? *reinterpret_cast<const float*>(from)
                                           : to_float(*reinterpret_cast<const Bf16*>(from));
      EXPECT_EQ(own.runs.size(), 1u);
      EXPECT_EQ(own.runs.front().element_count, kTileElements);
      added.push_back(
          {own.micro_batch, value, own.is_group_sum, own.runs.front().is_first, own.ends, is_last});
    });
    return added;
  }
  uint32_t host() const { return kHosts.host_of(rig.shards.rank()); }

  HomesRig rig;
  const StepRounds rounds;
  const std::vector<std::byte*> incoming;
  ExchangeByHosts exchange;
  std::vector<Bf16> gradient;
  DeviceCopy copied;
  StagedLanding staged;
};
using Additions = std::vector<Rank::Addition>;

void on_every_rank(const std::function<void(Communicator&)>& body) {
  ThreadWorld world({.ranks = kHosts.ranks, .hosts = kHosts.hosts});
  for (const std::string& failure : testing::on_every_rank(world, body)) EXPECT_EQ(failure, "");
}

TEST(ExchangeByHosts, HandsOnGradientsOfItsHostAndSumsOfOthersInTheOrderOfMicroBatches) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator, 8);
    rank.send(0);
    const Additions first = rank.host() == 0 ? Additions{{0, 1, false, true, false, false},
                                                         {1, 2, false, false, false, false},
                                                         {3, 3 + 4, true, false, false, true}}
                                             : Additions{{1, 1 + 2, true, true, false, false},
                                                         {2, 3, false, false, false, false},
                                                         {3, 4, false, false, false, true}};
    EXPECT_EQ(rank.add(), first) << communicator.rank();
    rank.send(1);
    const Additions last = rank.host() == 0 ? Additions{{4, 5, false, false, false, false},
                                                        {5, 6, false, false, false, false},
                                                        {7, 7 + 8, true, false, true, true}}
                                            : Additions{{5, 5 + 6, true, false, false, false},
                                                        {6, 7, false, false, false, false},
                                                        {7, 8, false, false, true, true}};
    EXPECT_EQ(rank.add(), last) << communicator.rank();
  });
}

// In the last round the second host has nothing, and the first one a group that is not full.
TEST(ExchangeByHosts, LeavesOutRanksAndHostsWithoutAMicroBatch) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator, 5);
    rank.send(0);
    EXPECT_EQ(rank.add().size(), 3u);
    rank.send(1);
    const Additions last{{4, 5, rank.host() == 1, false, true, true}};
    EXPECT_EQ(rank.add(), last) << communicator.rank();
  });
}

TEST(ExchangeByHosts, MovesTheBytesOfTheFormulas) {
  for (const bool dry : {false, true}) {
    for (const uint32_t bits : {0u, 8u}) {
      const auto body = [&](Communicator& communicator) {
        Rank rank(communicator, 6, bits, dry);
        for (uint32_t round = 0; round < rank.rounds.count(); ++round) {
          rank.send(round);
          rank.add();
        }
        const RankBytes moved = rank.exchange.moved();
        const RankBytes planned = exchange_bytes(rank.rig.shards, rank.rounds, kChunk, DataType::fp32);
        EXPECT_EQ(moved.in, planned.in) << communicator.rank();
        EXPECT_EQ(moved.out, planned.out) << communicator.rank();
        EXPECT_EQ(moved.between_in, planned.between_in) << communicator.rank();
        EXPECT_EQ(moved.between_out, planned.between_out) << communicator.rank();
      };
      if (!dry) {
        on_every_rank(body);
        continue;
      }
      for (uint32_t r = 0; r < kHosts.ranks; ++r) {
        DryCommunicator ranks(r, testing::places_on(kHosts));
        body(ranks);
      }
    }
  }
}

TEST(ExchangeByHosts, SendsSumsAcrossAsTheirCodes) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator, 4, 8);
    rank.send(0);
    const Additions added = rank.add();
    const size_t of_other_host = rank.host() == 0 ? 2 : 0;
    ASSERT_EQ(added.size(), 3u);
    const std::vector<float> sum(kTileElements, rank.host() == 0 ? 3.0f + 4.0f : 1.0f + 2.0f);
    std::vector<float> rounded(kTileElements);
    round_to_quantized(InstructionSet::scalar, 8, reinterpret_cast<const std::byte*>(sum.data()),
                       DataType::fp32, reinterpret_cast<std::byte*>(rounded.data()), DataType::fp32,
                       kTileElements);
    EXPECT_TRUE(added[of_other_host].is_group_sum);
    EXPECT_EQ(added[of_other_host].value, rounded[0]) << communicator.rank();
  });
}

TEST(ExchangeByHosts, HasArrivedWhenTheSumsOfOtherHostsHave) {
  std::latch looked(1);
  on_every_rank([&](Communicator& communicator) {
    Rank rank(communicator, 4);
    if (communicator.rank() > 0) {
      looked.wait();
      rank.send(0);
    } else {
      rank.send(0);
      EXPECT_FALSE(rank.exchange.has_arrived(rank.staged));
      looked.count_down();
    }
    while (!rank.exchange.has_arrived(rank.staged)) std::this_thread::yield();
    EXPECT_EQ(rank.add().size(), 3u);
  });
}

// No group of the first host stays open, since the last of a round is on the second one.
TEST(ExchangeByHosts, CountsZerosAsTheLastMicroBatchOfTheirRound) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator, 8);
    const GradientRun run{0, kTiles * kTileElements, false, 2};
    const GradientLanding own = rank.exchange.own_part({kChunk, 1, {&run, 1}, false, true, true});
    EXPECT_EQ(own.micro_batch, 7u);
    ASSERT_EQ(own.runs.size(), 1u);
    EXPECT_EQ(own.runs.front().first_element, 0u);
    EXPECT_EQ(own.runs.front().element_count, kTileElements);
    EXPECT_EQ(own.runs.front().open_group, rank.host() == 0 ? 0u : 2u);
  });
}

}  // namespace
}  // namespace terrace::exchange_by_hosts_test
