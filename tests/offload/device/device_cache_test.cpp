// The slots of a device, alone: who has one, who may take one, and what a failed copy leaves.
#include <terrace/offload/device/device_cache.h>

#include <gtest/gtest.h>

#include "offload/homes_rig.h"

namespace terrace::device_cache_test {
namespace {

constexpr ChunkId kFrozen{2};

struct DeviceCacheTest : ::testing::Test {
  // Chunks 0 and 1 are trained, chunk 2 is frozen; there are two slots.
  void make(Placement parameters = Placement::cpu, bool strict = false) {
    rig = std::make_unique<HomesRig>(
        SimulatedDeviceOptions{.budget_bytes = 8 * kMiB, .strict = strict},
        std::vector<TensorSpec>{{"w", {2 * kTileElements}, DataType::bf16},
                                {"frozen", {kTileElements}, DataType::bf16, false}});
    rig->plan.device_slots = 2;
    states = std::make_unique<TensorStates>(rig->space);
    cache = std::make_unique<DeviceCache>(rig->space, rig->device, rig->plan, parameters, PolicyKind::opt,
                                          *states, rig->watch, decisions);
  }
  CacheSlot* take_slot() { return cache->take_slot(EvictionContext{unknown, kNever}); }
  // A copy of bytes of the seed 100 + the chunk is on its way.
  CacheSlot& fetch(ChunkId chunk) {
    CacheSlot& slot = cache->begin_fetch(chunk, *take_slot());
    std::byte* const source = rig->pages.memory().data() + index_of(chunk) * rig->plan.slot_bytes;
    fill_random({source, rig->plan.slot_bytes}, 100 + index_of(chunk));
    slot.in.begin();
    rig->device.copy_to_device(slot.id, 0, source, rig->plan.slot_bytes, nullptr, slot.in);
    return slot;
  }
  void use(ChunkId chunk) {
    fetch(chunk);
    cache->pin_param(chunk);
    cache->attach_param(chunk);
    cache->unpin_param(chunk);
    cache->note_use(chunk);
  }

  MemoryLog log;
  Decisions decisions{nullptr};
  const Schedule unknown{};
  std::unique_ptr<HomesRig> rig;
  std::unique_ptr<TensorStates> states;
  std::unique_ptr<DeviceCache> cache;
};

TEST_F(DeviceCacheTest, FetchesAChunkToItsAddress) {
  make();
  const ChunkId chunk{1};
  EXPECT_EQ(cache->param_state(chunk), ChunkState::absent);
  CacheSlot& slot = fetch(chunk);
  EXPECT_EQ(cache->param_state(chunk), ChunkState::fetching);
  EXPECT_EQ(cache->arriving(chunk), &slot.in);
  cache->pin_param(chunk);
  cache->attach_param(chunk);
  EXPECT_EQ(cache->param_state(chunk), ChunkState::resident);
  EXPECT_EQ(cache->arriving(chunk), nullptr);
  EXPECT_TRUE(hold_seed(cache->param_address(chunk), 101, rig->plan.slot_bytes));
  EXPECT_EQ(cache->residents().size(), 1u);
}

TEST_F(DeviceCacheTest, ThrowsWhatMadeACopyFailAndTheChunkIsAbsentAgain) {
  make();
  CacheSlot& slot = cache->begin_fetch(ChunkId{0}, *take_slot());
  slot.in.begin();
  slot.in.complete_one(std::make_exception_ptr(Error(ErrorKind::io, {"played", "", "", ""})));
  cache->pin_param(ChunkId{0});
  EXPECT_EQ(error_of([&] { cache->attach_param(ChunkId{0}); }).kind(), ErrorKind::io);
  EXPECT_EQ(cache->param_state(ChunkId{0}), ChunkState::absent);
  EXPECT_EQ(cache->unused_slot_count(), 2u);
  cache->unpin_param(ChunkId{0});
  use(ChunkId{0});
  EXPECT_EQ(cache->param_state(ChunkId{0}), ChunkState::resident);
}

TEST_F(DeviceCacheTest, TakesTheSlotOfTheVictimThatThePolicyChoosesAndOfNoneThatIsPinned) {
  make();
  use(ChunkId{0});
  use(ChunkId{1});
  cache->pin_param(ChunkId{0});
  use(kFrozen);
  EXPECT_EQ(cache->param_state(ChunkId{0}), ChunkState::resident);
  EXPECT_EQ(cache->param_state(ChunkId{1}), ChunkState::absent);
  EXPECT_EQ(cache->eviction_count(), 1u);
  cache->pin_param(kFrozen);
  EXPECT_EQ(take_slot(), nullptr);
  EXPECT_FALSE(cache->make_leave(kFrozen));
  cache->unpin_param(kFrozen);
  EXPECT_TRUE(cache->make_leave(kFrozen));
  EXPECT_NE(take_slot(), nullptr);
  EXPECT_EQ(cache->eviction_count(), 2u);
}

TEST_F(DeviceCacheTest, EvictsNoChunkWithATensorThatComputes) {
  make();
  use(ChunkId{0});
  states->change(TensorId{0}, TensorState::hold);
  states->change(TensorId{0}, TensorState::compute);
  EXPECT_FALSE(cache->make_leave(ChunkId{0}));
  states->change(TensorId{0}, TensorState::hold);
  EXPECT_TRUE(cache->make_leave(ChunkId{0}));
}

TEST_F(DeviceCacheTest, NeverEvictsParametersThatLiveThere) {
  make(Placement::none);
  for (uint32_t c = 0; c < 2; ++c) cache->begin_in_place(ChunkId{c}, *take_slot());
  EXPECT_EQ(take_slot(), nullptr);
  EXPECT_FALSE(cache->make_leave(ChunkId{0}));
}

TEST_F(DeviceCacheTest, ClearsAGradientAndHandsItsSlotOnWhileTheCopyOutRuns) {
  make();
  use(ChunkId{1});
  CacheSlot* const slot = take_slot();
  std::memset(const_cast<std::byte*>(rig->device.home(slot->id)), 0x7f, rig->plan.slot_bytes);
  cache->begin_gradient(ChunkId{0}, *slot);
  EXPECT_EQ(cache->gradient_slot_count(), 1u);
  cache->pin_gradient(ChunkId{0});
  EXPECT_EQ(cache->gradient_address(ChunkId{0})[17], std::byte{0});
  cache->unpin_gradient(ChunkId{0});
  CacheSlot& leaving = cache->release_gradient(ChunkId{0});
  EXPECT_EQ(&leaving, slot);
  EXPECT_FALSE(cache->has_gradient(ChunkId{0}));
  EXPECT_EQ(cache->unused_slot_count(), 1u);
  EXPECT_EQ(take_slot(), slot) << "what leaves is taken before anything is evicted";
  EXPECT_EQ(cache->eviction_count(), 0u);
}

TEST_F(DeviceCacheTest, DropsWhatAnUpdateChangedAndKeepsWhatIsFrozen) {
  make();
  use(ChunkId{0});
  use(kFrozen);
  cache->drop_params(StaleParams::trainable);
  EXPECT_EQ(cache->param_state(ChunkId{0}), ChunkState::absent);
  EXPECT_EQ(cache->param_state(kFrozen), ChunkState::resident);
  cache->drop_params(StaleParams::all);
  EXPECT_EQ(cache->param_state(kFrozen), ChunkState::absent);
  EXPECT_EQ(cache->eviction_count(), 0u);
}

TEST_F(DeviceCacheTest, TakesASlotAheadOnlyFromAChunkThatIsNotNeededSooner) {
  make();
  use(ChunkId{0});
  use(ChunkId{1});
  const Schedule schedule({{"now", UseKind::forward, {}},
                           {"next", UseKind::forward, {ChunkId{0}}},
                           {"later", UseKind::forward, {ChunkId{1}}}},
                          HomesRig::kChunks);
  const EvictionContext now{schedule, 0};
  EXPECT_EQ(cache->take_slot_ahead(now, 2, 0), nullptr);
  EXPECT_EQ(cache->take_slot_ahead(now, 0, 2), nullptr) << "two slots remain";
  cache->drop_stale_param(ChunkId{1});
  EXPECT_EQ(cache->take_slot_ahead(now, 2, 1), nullptr) << "one slot remains";
  EXPECT_NE(cache->take_slot_ahead(now, 2, 0), nullptr);
}

TEST_F(DeviceCacheTest, AttachesOnlyWhatIsPinnedInStrictMode) {
  make(Placement::cpu, true);
  use(ChunkId{0});
  EXPECT_FALSE(rig->device.attached(cache->param_slot(ChunkId{0}).id));
  cache->pin_param(ChunkId{0});
  cache->attach_param(ChunkId{0});
  EXPECT_TRUE(rig->device.attached(cache->param_slot(ChunkId{0}).id));
  cache->unpin_param(ChunkId{0});
}

}  // namespace
}  // namespace terrace::device_cache_test
