#include <terrace/offload/records/record_store.h>

#include <gtest/gtest.h>

#include "memory/device/forwarding_device.h"
#include "offload/homes_rig.h"

namespace terrace::record_store_test {
namespace {

// Counts the locks that live.
class LockingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<HostMemoryLock> lock_host_memory(std::span<std::byte>) override {
    return std::make_unique<Lock>(locks);
  }
  int locks = 0;

 private:
  struct Lock final : HostMemoryLock {
    explicit Lock(int& locks) : count(locks) { ++count; }
    ~Lock() override { --count; }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    int& count;
  };
};

class RecordStoreTest : public ::testing::Test {
 protected:
  RecordStoreTest() : bytes(rig.plan.record_slot_bytes) {
    rig.make_store_of(bytes);
    rig.fill_store();
  }
  std::unique_ptr<RecordStore> records(Placement placement, uint32_t kept) {
    rig.plan.host_record_slots = kept;
    const bool on_nvme = placement == Placement::nvme;
    rig.wishes.states = placement;
    return std::make_unique<RecordStore>(rig.run, rig.arena, on_nvme ? rig.store.get() : nullptr,
                                         on_nvme ? rig.engine.get() : nullptr);
  }
  std::vector<std::byte> tiles_of(RecordStore& records, ChunkId chunk) {
    const std::span<std::byte> tiles = rig.pages.memory().subspan(kMiB, bytes);
    records.read(chunk, 0, tiles);
    return {tiles.begin(), tiles.end()};
  }

  HomesRig rig;
  const uint64_t bytes;  // of a chunk's records
};

TEST_F(RecordStoreTest, GivesBackWhatWasWrittenWhereverTheyLive) {
  for (const Placement placement : {Placement::none, Placement::cpu, Placement::nvme}) {
    const auto store = records(placement, placement == Placement::cpu ? HomesRig::kChunks : 0);
    const std::span<std::byte> tiles = rig.pages.memory().first(bytes);
    fill_random(tiles, 5);
    BlockTransfer write;
    store->start_write(ChunkId{1}, 0, tiles, write);
    write.finish(rig.watch);
    EXPECT_EQ(tiles_of(*store, ChunkId{1}), HomesRig::bytes_of_seed(5, bytes)) << name_of(placement);
    EXPECT_EQ(store->is_streamed(ChunkId{1}), placement == Placement::nvme);
  }
}

TEST_F(RecordStoreTest, KeepsAsManyInHostMemoryAsTheBudgetHasRoomForAndLosesNoChange) {
  const auto store = records(Placement::nvme, 2);
  EXPECT_EQ(store->kept_count(), 2u);
  EXPECT_EQ(store->streamed_bytes(), bytes);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    const std::span<std::byte> tiles = rig.pages.memory().first(bytes);
    fill_random(tiles, 200 + c);
    BlockTransfer write;
    store->start_write(ChunkId{c}, 0, tiles, write);
    write.finish(rig.watch);
  }
  store->keep(0, false);
  EXPECT_EQ(store->left_bytes(), 2 * bytes);
  EXPECT_EQ(store->given_back_bytes(), 2 * bytes);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    EXPECT_EQ(store->resident(ChunkId{c}), nullptr);
    EXPECT_EQ(tiles_of(*store, ChunkId{c}), HomesRig::bytes_of_seed(200 + c, bytes));
  }
  store->keep(2, false);
  EXPECT_EQ(store->entered_bytes(), 2 * bytes);
  store->keep(1, false);
  EXPECT_EQ(store->left_bytes(), 2 * bytes) << "what is clean leaves without a write";
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c)
    EXPECT_EQ(tiles_of(*store, ChunkId{c}), HomesRig::bytes_of_seed(200 + c, bytes));
}

TEST_F(RecordStoreTest, IsLockedForTheDeviceWhereThatUpdatesItAndAsLongAsItIsInHostMemory) {
  LockingDevice device(rig.device);
  rig.plan.host_record_slots = HomesRig::kChunks;
  rig.wishes.states = Placement::nvme;
  const RunContext run = rig.run_on(device);
  RecordStore store(run, rig.arena, rig.store.get(), rig.engine.get());
  store.lock_for_device({true, false, true});
  EXPECT_EQ(device.locks, 2);
  store.keep(0, false);
  EXPECT_EQ(device.locks, 0);
  store.keep(HomesRig::kChunks, false);
  EXPECT_EQ(device.locks, 2);
}

TEST_F(RecordStoreTest, StaysAsItWasWhereARecordThatEntersCannotBeRead) {
  const auto store = records(Placement::nvme, 1);
  store->keep(0, false);
  rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  const auto again = records(Placement::nvme, 1);
  again->keep(0, false);
  EXPECT_EQ(error_of([&] { again->keep(1, false); }).kind(), ErrorKind::io);
  EXPECT_EQ(again->kept_count(), 0u);
  EXPECT_EQ(again->given_back_bytes(), bytes);
}

}  // namespace
}  // namespace terrace::record_store_test
