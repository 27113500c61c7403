// The shares of all ranks come together in a slot of the device: written there by the ranks or copied, from
// other hosts once and kept, as codes or as they are.
#include <terrace/offload/parameters/parameter_gathers.h>

#include <gtest/gtest.h>

#include "offload/parameters/gather_rig.h"

namespace terrace::parameter_gathers_test {
namespace {

constexpr ChunkId kChunk{1};

struct Rank {
  explicit Rank(Communicator& communicator, const OffloadOptions& options = {},
                const std::function<void(MemoryPlan&)>& change = nullptr)
      : rig(communicator, options) {
    if (change) change(rig.plan);
    cache = std::make_unique<DeviceCache>(rig.space, rig.device, rig.plan, Placement::cpu, PolicyKind::opt,
                                          states, rig.watch, decisions);
    gathers = std::make_unique<ParameterGathers>(rig.run, rig.arena, *cache);
  }
  // This rank brings its share into a slot, from host memory; the others bring theirs.
  void fetch(ChunkId chunk, uint32_t version = 0) {
    share = GatherRig::share_of(chunk, rig.shards.rank(), version);
    slot = &cache->begin_fetch(chunk, *cache->take_unused());
    gathers->share(*slot).begin(to_device_copy("parameters", chunk));
    rig.device.copy_to_device(slot->id, rig.shards.first_param_byte(chunk), memory(),
                              rig.shards.param_bytes(chunk), nullptr, gathers->share(*slot));
    gathers->gather(chunk, *slot, {memory(), nullptr}, TransferReason::step);
  }
  std::vector<Bf16> arrived(ChunkId chunk) {
    cache->pin_param(chunk);
    cache->attach_param(chunk);
    const auto* const elements = reinterpret_cast<const Bf16*>(cache->param_address(chunk));
    std::vector<Bf16> found(elements, elements + rig.space.chunk(chunk).elements);
    cache->unpin_param(chunk);
    cache->drop_stale_param(chunk);
    gathers->finished(chunk);
    return found;
  }
  bool has_whole(ChunkId chunk, uint32_t version = 0) {
    const std::vector<Bf16> found = arrived(chunk), expected = rig.whole(chunk, version);
    return std::memcmp(found.data(), expected.data(), expected.size() * sizeof(Bf16)) == 0;
  }
  std::byte* memory() { return reinterpret_cast<std::byte*>(share.data()); }
  uint64_t share_bytes() const { return rig.plan.share_bytes; }

  GatherRig rig;
  TensorStates states{rig.space};
  Decisions decisions{nullptr};
  std::vector<Bf16> share;
  CacheSlot* slot = nullptr;
  std::unique_ptr<DeviceCache> cache;
  std::unique_ptr<ParameterGathers> gathers;
};

void on_every_rank(const HostLayout& hosts, const std::function<void(Communicator&)>& body) {
  ThreadWorld world({.ranks = hosts.ranks, .hosts = hosts.hosts});
  for (const std::string& failure : testing::on_every_rank(world, body)) EXPECT_EQ(failure, "");
}

OffloadOptions on_hosts(uint32_t hosts) {
  OffloadOptions options;
  options.hosts = hosts;
  return options;
}

TEST(ParameterGathers, BringTheSharesOfAllRanksTogetherInTheSlotOrByCopies) {
  for (const HostLayout& hosts : {HostLayout{3, 1}, HostLayout{4, 2}}) {
    for (const uint32_t stages : {0u, 1u}) {
      on_every_rank(hosts, [&](Communicator& communicator) {
        Rank rank(communicator, on_hosts(hosts.hosts), [&](MemoryPlan& plan) { plan.gather_slots = stages; });
        for (const uint32_t version : {0u, 1u}) {
          for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
            rank.fetch(ChunkId{c}, version);
            EXPECT_TRUE(rank.has_whole(ChunkId{c}, version)) << c;
          }
        }
        // The shares from another host pass through one rank, which hands them on to those of its host.
        const uint64_t gathers = 2 * HomesRig::kChunks, share = rank.share_bytes();
        const RankBytes moved = rank.gathers->moved();
        EXPECT_EQ(moved.in, gathers * (hosts.ranks - 1) * share);
        EXPECT_EQ(moved.between_in, gathers * (hosts.hosts - 1) * share);
        EXPECT_EQ(moved.between_out, moved.between_in);
        EXPECT_EQ(rank.gathers->h2d_bytes(), stages * gathers * (hosts.ranks - 1) * share);
        EXPECT_EQ(rank.gathers->d2h_bytes(), 0u) << "the own share leaves from host memory";
      });
    }
  }
}

TEST(ParameterGathers, TakeTheOwnShareOutOfTheSlotWhereItIsNowhereElse) {
  on_every_rank({2, 1}, [](Communicator& communicator) {
    Rank rank(communicator, {}, [](MemoryPlan& plan) { plan.gather_slots = 1; });
    rank.share = GatherRig::share_of(kChunk, communicator.rank());
    CacheSlot& slot = rank.cache->begin_fetch(kChunk, *rank.cache->take_unused());
    rank.gathers->share(slot).begin();
    rank.rig.device.copy_to_device(slot.id, rank.rig.shards.first_param_byte(kChunk), rank.memory(),
                                   rank.share_bytes(), nullptr, rank.gathers->share(slot));
    rank.gathers->gather(kChunk, slot, {}, TransferReason::update);
    EXPECT_TRUE(rank.has_whole(kChunk));
    EXPECT_EQ(rank.gathers->d2h_bytes(), rank.share_bytes());
  });
}

TEST(ParameterGathers, KeepWhatCameFromOtherHostsUntilItChanges) {
  for (const uint32_t stages : {0u, 1u}) {
    on_every_rank({4, 2}, [&](Communicator& communicator) {
      Rank rank(communicator, on_hosts(2), [&](MemoryPlan& plan) {
        plan.gather_slots = stages;
        plan.kept_gathers = 2;
        plan.kept_gather_bytes = plan.share_bytes;
      });
      const auto crossed = [&] { return rank.gathers->moved().between_in / rank.share_bytes(); };
      for (int again = 0; again < 3; ++again) {
        rank.fetch(kChunk);
        EXPECT_TRUE(rank.has_whole(kChunk));
      }
      EXPECT_EQ(crossed(), 1u);
      rank.gathers->forget(kChunk);
      rank.fetch(kChunk, 1);
      EXPECT_TRUE(rank.has_whole(kChunk, 1));
      EXPECT_EQ(crossed(), 2u);
      for (int again = 0; again < 2; ++again) {
        rank.fetch(ChunkId{2});  // there is no room to keep it
        EXPECT_TRUE(rank.has_whole(ChunkId{2}));
      }
      EXPECT_EQ(crossed(), 4u);
    });
  }
}

TEST(ParameterGathers, CrossBetweenHostsAsCodesThatLoseNothing) {
  on_every_rank({4, 2}, [](Communicator& communicator) {
    OffloadOptions options = on_hosts(2);
    options.parameter_bits = 8;
    const uint64_t code_bytes = quantized_bytes(kTileElements, 8);
    Rank rank(communicator, options, [&](MemoryPlan& plan) {
      plan.code_slots = 1;
      plan.code_slot_bytes = 2 * code_bytes;
    });
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      rank.fetch(ChunkId{c});
      const std::vector<Bf16> found = rank.arrived(ChunkId{c});
      for (uint32_t r = 0; r < 4; ++r) {
        std::vector<Bf16> expected = GatherRig::share_of(ChunkId{c}, r);
        const std::vector<Bf16> exact = expected;
        round_to_quantized(InstructionSet::scalar, 8, reinterpret_cast<const std::byte*>(exact.data()),
                           DataType::bf16, reinterpret_cast<std::byte*>(expected.data()), DataType::bf16,
                           kTileElements);
        const bool is_here = (r < 2) == (communicator.rank() < 2);
        EXPECT_EQ(std::memcmp(found.data() + r * kTileElements, (is_here ? exact : expected).data(),
                              rank.share_bytes()),
                  0)
            << r;
      }
    }
    EXPECT_EQ(rank.gathers->moved().between_in, HomesRig::kChunks * code_bytes);
  });
}

TEST(ParameterGathers, HaveRoomUntilEverySlotOnTheHostBelongsToAFetch) {
  on_every_rank({2, 1}, [](Communicator& communicator) {
    Rank rank(communicator, {}, [](MemoryPlan& plan) { plan.gather_slots = 2; });
    rank.fetch(ChunkId{0});
    EXPECT_TRUE(rank.gathers->has_room());
    std::vector<Bf16> first = std::move(rank.share);  // leaves from there until it has arrived
    rank.fetch(ChunkId{1});
    EXPECT_FALSE(rank.gathers->has_room());
    EXPECT_TRUE(rank.has_whole(ChunkId{0}));
    EXPECT_TRUE(rank.gathers->has_room());
    EXPECT_TRUE(rank.has_whole(ChunkId{1}));
  });
}

TEST(NoGathers, LetWhatComesBeTheWholeChunk) {
  NoGathers gathers;
  CacheSlot slot;
  EXPECT_EQ(&gathers.share(slot), &slot.in);
  EXPECT_EQ(&gathers.share_left(slot), &slot.in);
  EXPECT_TRUE(gathers.has_room());
  EXPECT_TRUE(gathers.overlap());
  gathers.gather(kChunk, slot, {}, TransferReason::step);
  EXPECT_TRUE(slot.in.done());
  EXPECT_EQ(gathers.moved().in, 0u);
}

}  // namespace
}  // namespace terrace::parameter_gathers_test
