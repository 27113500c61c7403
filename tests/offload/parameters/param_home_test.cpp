// The homes of parameters below the device, alone: host slots, the tier file, and updates that are expected.
#include <terrace/offload/parameters/param_home.h>

#include <gtest/gtest.h>

#include "offload/homes_rig.h"

namespace terrace::param_home_test {
namespace {

constexpr ChunkId kChunk{1};

struct ParamHomeTest : ::testing::Test {
  // On nvme `kept` chunks have host slots, and there are `staging` slots for the others. Chunk c holds bytes
  // of the seed 100 + c.
  void make(Placement placement, uint32_t kept = HomesRig::kChunks, uint32_t staging = 1,
            std::vector<io::Fault> faults = {}) {
    rig.plan.host_param_slots = kept;
    rig.plan.staging_slots = staging;
    const bool on_nvme = placement == Placement::nvme;
    if (on_nvme) {
      rig.make_store_of(rig.plan.slot_bytes);
      rig.fill_store();
      reader = std::make_unique<io::IoThread>(std::make_unique<io::FaultEngine>(
          io::make_engine({.kind = io::EngineKind::threads}), std::move(faults)));
    }
    rig.wishes.parameters = placement;
    home = std::make_unique<ParamHome>(rig.run, rig.arena,
                                       ParameterStores{rig.store.get(), nullptr, reader.get()}, rig.gathers);
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      if (std::byte* slot = home->host_slot(ChunkId{c})) fill_random({slot, rig.plan.slot_bytes}, 100 + c);
    }
    const std::vector<DeviceSlot> ids =
        rig.device.create_slots(rig.plan.slot_bytes, HomesRig::kChunks, "a test");
    for (uint32_t s = 0; s < HomesRig::kChunks; ++s) slots[s].id = ids[s];
  }
  bool arrived(ChunkId chunk) {
    CacheSlot& slot = slots[index_of(chunk)];
    slot.in.wait();
    return hold_seed(rig.device.home(slot.id), 100 + index_of(chunk), rig.plan.slot_bytes);
  }
  void fetch(ChunkId chunk) { home->start_fetch(chunk, slots[index_of(chunk)]); }

  HomesRig rig;
  std::unique_ptr<io::IoThread> reader;
  std::array<CacheSlot, HomesRig::kChunks> slots;
  std::unique_ptr<ParamHome> home;
};

TEST_F(ParamHomeTest, CopiesWhatHasAHostSlotFromThere) {
  make(Placement::cpu, HomesRig::kChunks, 0);
  EXPECT_TRUE(home->is_in_memory(kChunk));
  EXPECT_TRUE(home->can_fetch_ahead(kChunk));
  EXPECT_EQ(home->copy_number(kChunk), 0u);
  fetch(kChunk);
  EXPECT_TRUE(arrived(kChunk));
  EXPECT_EQ(slots[1].read, nullptr);
  EXPECT_EQ(home->copy_number(kChunk), 1u);
  EXPECT_EQ(home->h2d_bytes(), rig.plan.slot_bytes);
  EXPECT_EQ(home->nvme_read_bytes(), 0u);
}

TEST_F(ParamHomeTest, ReadsWhatLivesInTheTierFileThroughAStagingSlot) {
  make(Placement::nvme, 0, 1);
  EXPECT_FALSE(home->is_in_memory(kChunk));
  EXPECT_TRUE(home->can_fetch_ahead(kChunk));
  fetch(kChunk);
  EXPECT_NE(slots[1].read, nullptr);
  EXPECT_EQ(slots[1].in.subject().link, "host -> device");
  EXPECT_EQ(slots[1].in.subject().chunk, kChunk);
  EXPECT_FALSE(home->can_fetch_ahead(ChunkId{0})) << "the only staging slot is taken";
  EXPECT_TRUE(arrived(kChunk));
  home->fetch_finished(kChunk);
  EXPECT_TRUE(home->can_fetch_ahead(ChunkId{0}));
  fetch(ChunkId{0});
  fetch(ChunkId{2});  // waits for the one before
  EXPECT_TRUE(arrived(ChunkId{0}));
  EXPECT_TRUE(arrived(ChunkId{2}));
  EXPECT_EQ(home->nvme_read_bytes(), 3 * rig.plan.slot_bytes);
  EXPECT_EQ(home->h2d_bytes(), 3 * rig.plan.slot_bytes);
}

TEST_F(ParamHomeTest, HoldsOneStagingSlotOfAChunkThatIsFetchedAgainAndNoneOfOneThatIsRead) {
  make(Placement::nvme, 0, 2);
  for (int again = 0; again < 2; ++again) {
    fetch(kChunk);
    EXPECT_TRUE(arrived(kChunk));
  }
  EXPECT_TRUE(home->can_fetch_ahead(ChunkId{0})) << "the earlier copy left the device without a use";
  fetch(ChunkId{0});
  EXPECT_FALSE(home->can_fetch_ahead(ChunkId{2}));
  home->read(kChunk, rig.pages.memory().data());
  EXPECT_TRUE(hold_seed(rig.pages.memory().data(), 101, rig.plan.slot_bytes));
  EXPECT_TRUE(home->can_fetch_ahead(ChunkId{2}));
  EXPECT_TRUE(arrived(ChunkId{0}));
}

TEST_F(ParamHomeTest, KeepsAsManyInHostSlotsAsThePlanHas) {
  make(Placement::nvme, 2);
  uint32_t kept = 0;
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    kept += home->is_in_memory(ChunkId{c}) ? 1 : 0;
    home->read(ChunkId{c}, rig.pages.memory().data());
    EXPECT_TRUE(hold_seed(rig.pages.memory().data(), 100 + c, rig.plan.slot_bytes));
  }
  EXPECT_EQ(kept, 2u);
  EXPECT_EQ(home->nvme_read_bytes(), rig.plan.slot_bytes);
}

TEST_F(ParamHomeTest, FailsTheCopyBehindAReadThatFailed) {
  make(Placement::nvme, 0, 1, {{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  fetch(kChunk);
  EXPECT_EQ(error_of([&] { slots[1].in.wait(); }).kind(), ErrorKind::io);
  home->fetch_finished(kChunk);
  fetch(kChunk);
  EXPECT_TRUE(arrived(kChunk));
}

TEST_F(ParamHomeTest, ReadsBehindTheUpdateThatIsExpectedWhicheverComesFirst) {
  make(Placement::nvme, 0, 2);
  for (const bool fetch_first : {true, false}) {
    Event updated;
    updated.begin();
    home->expect(kChunk, updated, nullptr);
    if (fetch_first) fetch(kChunk);
    EXPECT_EQ(slots[1].in.done(), !fetch_first);
    rig.write(*rig.store, kChunk, 0, fetch_first ? 7 : 8);  // what the update makes
    home->update_over(kChunk, nullptr);
    updated.complete_one();
    if (!fetch_first) fetch(kChunk);
    slots[1].in.wait();
    EXPECT_TRUE(hold_seed(rig.device.home(slots[1].id), fetch_first ? 7 : 8, rig.plan.slot_bytes));
    home->stop_expecting(kChunk);
    home->fetch_finished(kChunk);
  }
}

TEST_F(ParamHomeTest, FailsAFetchBehindAnUpdateThatFailed) {
  make(Placement::nvme, 0, 1);
  const auto failure = std::make_exception_ptr(Error(ErrorKind::capacity, {"played", "", "", ""}));
  for (const bool fetch_first : {true, false}) {
    Event updated;
    updated.begin();
    home->expect(kChunk, updated, nullptr);
    if (fetch_first) fetch(kChunk);
    home->update_over(kChunk, failure);
    updated.complete_one(failure);
    if (!fetch_first) fetch(kChunk);
    EXPECT_EQ(error_of([&] { slots[1].in.wait(); }).kind(), ErrorKind::capacity);
    home->stop_expecting(kChunk);
    home->fetch_finished(kChunk);
  }
}

TEST_F(ParamHomeTest, CopiesFreshParametersFromWhereTheyWereMadeUntilTheyAreForgotten) {
  make(Placement::nvme, 0, 1);
  const std::span<std::byte> fresh = rig.pages.memory().subspan(kMiB, rig.plan.slot_bytes);
  fill_random(fresh, 101);
  Event updated;
  home->expect(kChunk, updated, fresh.data());
  EXPECT_TRUE(home->has_fresh(kChunk));
  EXPECT_EQ(home->in_host_memory(kChunk), fresh.data());
  fetch(kChunk);
  EXPECT_TRUE(arrived(kChunk));
  EXPECT_EQ(home->nvme_read_bytes(), 0u);
  home->forget_fresh();
  EXPECT_FALSE(home->has_fresh(kChunk));
  EXPECT_EQ(home->in_host_memory(kChunk), nullptr);
}

}  // namespace
}  // namespace terrace::param_home_test
