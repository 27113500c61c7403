#include <terrace/offload/gradients/spilled_gradients.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "offload/homes_rig.h"

namespace terrace::spilled_gradients_test {
namespace {

constexpr uint64_t kBytes = kTileElements * sizeof(float);

class SpilledGradientsTest : public ::testing::Test {
 protected:
  SpilledGradientsTest() {
    rig.plan.spill_slots = 2;
    rig.plan.spill_slot_bytes = kBytes;
    rig.make_store_of(kBytes);
    make({});
  }
  void make(std::vector<io::Fault> faults) {
    io.reset();
    spilled.reset();
    io = std::make_unique<io::IoThread>(std::make_unique<io::FaultEngine>(
        io::make_engine({.kind = io::EngineKind::threads}, rig.log), std::move(faults)));
    spilled = std::make_unique<SpilledGradients>(rig.space, rig.plan, rig.arena, *rig.store, rig.watch);
    spilled->leave_through(*io);
  }
  void land(ChunkId chunk, uint64_t seed) {
    spilled->begin(chunk, false);
    fill_random({spilled->landing(chunk), kBytes}, seed);
    spilled->write(chunk);
  }
  // The gradient as an update reads it.
  std::vector<std::byte> opened(ChunkId chunk) {
    EXPECT_TRUE(spilled->start_open(chunk, *rig.engine));
    while (!spilled->is_open(chunk)) rig.engine->wait(1);
    const std::vector<std::byte> bytes(spilled->opened(chunk), spilled->opened(chunk) + kBytes);
    spilled->release(chunk);
    return bytes;
  }

  HomesRig rig;
  std::unique_ptr<SpilledGradients> spilled;
  std::unique_ptr<io::IoThread> io;
};

TEST_F(SpilledGradientsTest, LeaveAndComeBackForTheUpdate) {
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) land(ChunkId{c}, c);
  spilled->finish_writes();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    EXPECT_TRUE(spilled->is_written(ChunkId{c}));
    EXPECT_EQ(opened(ChunkId{c}), HomesRig::bytes_of_seed(c, kBytes));
  }
}

TEST_F(SpilledGradientsTest, GetWhatAnotherMicroBatchAdds) {
  land(ChunkId{0}, 7);
  spilled->begin(ChunkId{0}, true);
  spilled->wait_old(ChunkId{0});
  EXPECT_TRUE(hold_seed(spilled->landing(ChunkId{0}), 7, kBytes));
  fill_random({spilled->landing(ChunkId{0}), kBytes}, 8);
  spilled->write(ChunkId{0});
  spilled->finish_writes();
  EXPECT_EQ(opened(ChunkId{0}), HomesRig::bytes_of_seed(8, kBytes));
}

// No rank has a gradient for these tiles in the micro-batch.
TEST_F(SpilledGradientsTest, StayAsTheyAreWhereAnotherMicroBatchAddsNothing) {
  make({{.index = 0, .kind = io::FaultKind::delay, .delay_ns = 100'000'000, .operation = io::OpKind::read}});
  land(ChunkId{0}, 7);
  spilled->begin(ChunkId{0}, true);
  spilled->write(ChunkId{0});
  spilled->finish_writes();
  EXPECT_EQ(opened(ChunkId{0}), HomesRig::bytes_of_seed(7, kBytes));
}

TEST_F(SpilledGradientsTest, AreZeroWithoutATransferWhereNothingLanded) {
  spilled->set_zero(ChunkId{1});
  const uint64_t read = rig.engine->stats().bytes_read;
  EXPECT_EQ(opened(ChunkId{1}), std::vector<std::byte>(kBytes));
  EXPECT_EQ(rig.engine->stats().bytes_read, read);
}

TEST_F(SpilledGradientsTest, NameTheChunkOfATransferThatFails) {
  make({{.index = 0, .error = EIO, .operation = io::OpKind::write}});
  land(ChunkId{2}, 1);
  EXPECT_THAT(error_of([&] { spilled->finish_writes(); }).what(),
              ::testing::HasSubstr("gradient of chunk 2: "));
  EXPECT_FALSE(spilled->is_written(ChunkId{2}));
}

}  // namespace
}  // namespace terrace::spilled_gradients_test
