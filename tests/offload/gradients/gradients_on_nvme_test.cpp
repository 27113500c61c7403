#include <terrace/offload/gradients/gradients_on_nvme.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "offload/landing/gradient_rig.h"

namespace terrace::gradients_on_nvme_test {
namespace {

constexpr uint64_t kBytes = kTileElements * sizeof(float);

class GradientsOnNvmeTest : public ::testing::Test {
 protected:
  GradientsOnNvmeTest() {
    rig.plan.spill_slots = 2;
    rig.plan.spill_slot_bytes = kBytes;
    rig.make_store_of(kBytes);
    make({});
  }
  void make(std::vector<io::Fault> faults) {
    place.reset();
    io.reset();
    io = std::make_unique<io::IoThread>(std::make_unique<io::FaultEngine>(
        io::make_engine({.kind = io::EngineKind::threads}), std::move(faults)));
    place = std::make_unique<GradientsOnNvme>(rig.run, rig.arena, SpillTier{rig.store.get(), io.get()},
                                              *arithmetic, AccumulationRules{DataType::fp32, {2}});
  }
  // The first landing of a chunk, or another one.
  void begin(ChunkId chunk, bool is_first) {
    place->make_room(rig.landing(chunk, is_first ? 0 : 1, 2), [](ChunkId) {});
  }
  void land(ChunkId chunk, uint64_t seed) {
    begin(chunk, true);
    fill_random({place->filled(chunk), kBytes}, seed);
    place->write(chunk);
  }
  // The gradient as an update reads it.
  std::vector<std::byte> opened(ChunkId chunk) {
    EXPECT_TRUE(place->start_open(chunk, *rig.engine));
    while (!place->is_open(chunk)) rig.engine->wait(1);
    const std::vector<std::byte> bytes(place->gradient(chunk), place->gradient(chunk) + kBytes);
    place->release(chunk);
    return bytes;
  }

  GradientRig rig;
  const std::unique_ptr<GradientArithmetic> arithmetic = rig.arithmetic();
  std::unique_ptr<io::IoThread> io;
  std::unique_ptr<GradientsOnNvme> place;
};

TEST_F(GradientsOnNvmeTest, LeaveAndComeBackForTheUpdate) {
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) land(ChunkId{c}, c);
  place->finish(true);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    EXPECT_TRUE(place->is_complete(ChunkId{c}));
    EXPECT_EQ(opened(ChunkId{c}), HomesRig::bytes_of_seed(c, kBytes));
  }
}

TEST_F(GradientsOnNvmeTest, GetWhatAnotherMicroBatchAdds) {
  land(ChunkId{0}, 7);
  begin(ChunkId{0}, false);
  EXPECT_TRUE(hold_seed(place->filled(ChunkId{0}), 7, kBytes));
  fill_random({place->filled(ChunkId{0}), kBytes}, 8);
  place->write(ChunkId{0});
  place->finish(true);
  EXPECT_EQ(opened(ChunkId{0}), HomesRig::bytes_of_seed(8, kBytes));
}

// No rank has a gradient for these tiles in the micro-batch.
TEST_F(GradientsOnNvmeTest, StayAsTheyAreWhereAnotherMicroBatchAddsNothing) {
  make({{.index = 0, .kind = io::FaultKind::delay, .delay_ns = 100'000'000, .operation = io::OpKind::read}});
  land(ChunkId{0}, 7);
  begin(ChunkId{0}, false);
  place->write(ChunkId{0});
  place->finish(true);
  EXPECT_EQ(opened(ChunkId{0}), HomesRig::bytes_of_seed(7, kBytes));
}

TEST_F(GradientsOnNvmeTest, AreZeroWithoutATransferWhereNothingLanded) {
  const GradientLanding zeros = rig.landing(ChunkId{1}, 0, 2);
  place->add_zeros(zeros, zeros, [](ChunkId) {});
  const uint64_t read = rig.engine->stats().bytes_read;
  EXPECT_EQ(opened(ChunkId{1}), std::vector<std::byte>(kBytes));
  EXPECT_EQ(rig.engine->stats().bytes_read, read);
}

TEST_F(GradientsOnNvmeTest, NameTheChunkOfATransferThatFails) {
  make({{.index = 0, .error = EIO, .operation = io::OpKind::write}});
  land(ChunkId{2}, 1);
  EXPECT_THAT(error_of([&] { place->finish(true); }).what(), ::testing::HasSubstr("gradient of chunk 2: "));
  EXPECT_FALSE(place->is_complete(ChunkId{2}));
}

}  // namespace
}  // namespace terrace::gradients_on_nvme_test
