// A rank adds what one rank would add, in the order of micro-batches, whoever made it and whoever comes
// first.
#include <terrace/offload/landing/exchange_with_all.h>

#include <gtest/gtest.h>

#include <terrace/offload/landing/gradient_staging.h>

#include "comm/thread_world.h"
#include "offload/landing/gradient_rig.h"
#include "support/rank_threads.h"

namespace terrace::exchange_with_all_test {
namespace {

constexpr ChunkId kChunk{1};

// Chunks of one tile: the first rank owns all of them.
struct Rank {
  Rank(Communicator& communicator, uint32_t micro_batches,
       SimulatedDeviceOptions device = {.budget_bytes = 8 * kMiB})
      : rig(device),
        shards(rig.space, communicator.rank(), communicator.size()),
        memory{rig.take(rig.plan.slot_bytes), rig.take(rig.plan.slot_bytes)},
        incoming{rig.take(4 * rig.plan.slot_bytes), rig.take(4 * rig.plan.slot_bytes)},
        exchange(
            rig.space, rig.device, *rig.cache, GradientStaging::Slots{memory},
            std::make_unique<ExchangeWithAll>(
                ExchangeRanks{shards, communicator, rig.watch, {micro_batches, communicator.size()}, false},
                incoming, 1)) {}

  void land(uint32_t round, uint32_t rounds, float value) {
    make_gradient(*rig.cache, kChunk, value);
    exchange.land(rig.landing(kChunk, round, rounds), nullptr, note());
  }
  GradientStaging::Add note() { return adding; }

  struct Addition {
    uint32_t micro_batch;
    bool is_first, ends, is_last;
    float value;
    bool operator==(const Addition&) const = default;
  };
  std::vector<Addition> added;
  std::function<void(const GradientLanding&, const std::byte*, bool)> adding =
      [this](const GradientLanding& own, const std::byte* gradient, bool is_last) {
        const bool has_runs = !own.runs.empty();
        added.push_back({own.micro_batch, has_runs && own.runs.front().is_first, own.ends, is_last,
                         has_runs ? to_float(*reinterpret_cast<const Bf16*>(gradient)) : 0});
      };

  GradientRig rig;
  const ChunkShards shards;
  std::vector<std::byte*> memory, incoming;
  GradientStaging exchange;
};

TEST(ExchangeWithAll, HandsPartsOnInTheOrderOfMicroBatches) {
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& communicator) {
         Rank rank(communicator, 4);
         const float mine = static_cast<float>(communicator.rank());
         rank.land(0, 2, 1 + mine);
         rank.land(1, 2, 4 + mine);  // a micro-batch of the first rank alone
         rank.exchange.finish_all(rank.note());
         using Additions = std::vector<Rank::Addition>;
         const bool owns = communicator.rank() == 0;
         const Additions expected = owns ? Additions{{0, true, false, false, 1},
                                                     {1, false, false, false, 2},
                                                     {2, false, false, true, 3},
                                                     {3, false, true, true, 4}}
                                         : Additions{{0, false, false, false, 0},
                                                     {1, false, false, false, 0},
                                                     {2, false, false, true, 0},
                                                     {3, false, true, true, 0}};
         EXPECT_EQ(rank.added, expected) << communicator.rank();
       }))
    EXPECT_EQ(failure, "");
}

// A copy of the second landing begins when the slow link has made that of the first.
TEST(ExchangeWithAll, SendsWhatTheDeviceHasWrittenAndNotBefore) {
  ThreadWorld world({.ranks = 2});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& communicator) {
         Rank rank(communicator, 4,
                   {.budget_bytes = 8 * kMiB,
                    .d2h_bytes_per_second = 100 * kTileElements * sizeof(Bf16),
                    .caller_makes_small_copies = false});
         const float mine = static_cast<float>(communicator.rank());
         rank.land(0, 2, 1 + mine);
         rank.land(1, 2, 3 + mine);
         rank.exchange.finish_all(rank.note());
         if (communicator.rank() != 0) return;
         ASSERT_EQ(rank.added.size(), 4u);
         for (size_t m = 0; m < 4; ++m) EXPECT_EQ(rank.added[m].value, static_cast<float>(m + 1));
       }))
    EXPECT_EQ(failure, "");
}

TEST(ExchangeWithAll, CountsZerosAsTheLastMicroBatchOfTheirRound) {
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& communicator) {
         Rank rank(communicator, 4);
         EXPECT_EQ(rank.exchange.own_part(rank.rig.landing(kChunk, 0, 2)).micro_batch, 2u);
         EXPECT_EQ(rank.exchange.own_part(rank.rig.landing(kChunk, 1, 2)).micro_batch, 3u);
         EXPECT_EQ(rank.exchange.own_part(rank.rig.landing(kChunk)).runs.empty(), communicator.rank() > 0);
       }))
    EXPECT_EQ(failure, "");
}

TEST(ExchangeWithAll, TakesWhatIsHandedOverAndPadsIt) {
  ThreadWorld world({.ranks = 2});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& communicator) {
         Rank rank(communicator, 2);
         std::vector<Bf16> part(100, to_bf16(7));
         const GradientLanding landing = rank.rig.landing(kChunk, 0, 1);
         rank.exchange.land_part(
             landing, {TensorId{0}, 0, reinterpret_cast<const std::byte*>(part.data()), part.size()});
         std::ranges::fill(part, to_bf16(0));  // the program may
         std::vector<float> first, behind;
         rank.exchange.finish(kChunk, [&](const GradientLanding& own, const std::byte* gradient, bool) {
           if (own.runs.empty()) return;
           const auto* const elements = reinterpret_cast<const Bf16*>(gradient);
           first.push_back(to_float(elements[99]));
           behind.push_back(to_float(elements[100]));
         });
         const size_t parts = communicator.rank() == 0 ? 2 : 0;
         EXPECT_EQ(first, std::vector<float>(parts, 7));
         EXPECT_EQ(behind, std::vector<float>(parts, 0));
       }))
    EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace terrace::exchange_with_all_test
