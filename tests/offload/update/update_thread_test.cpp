// An update beside the thread that asks for it: what is allowed, what fails, what is never allowed.
#include <terrace/offload/update/update_thread.h>

#include <gtest/gtest.h>

#include <stdexcept>

#include "offload/update/update_rig.h"

namespace terrace::update_thread_test {
namespace {

struct UpdateThreadTest : ::testing::Test {
  UpdateThreadTest() : records(rig.make_records(Placement::cpu)), tiles(rig.make_tiles()) {
    thread = std::make_unique<UpdateThread>(HomesRig::kChunks, pipeline, progress, nullptr, rig.workers,
                                            rig.watch);
  }
  void begin() {
    progress.begin_update();
    thread->begin(true);
  }
  void add_all() {
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      progress.begin(ChunkId{c});
      thread->add(ChunkId{c});
    }
  }
  bool is_updated(uint32_t chunk) const {
    return UpdateRig::is_filled(records->resident(ChunkId{chunk}), UpdateRig::updated(chunk, 0));
  }

  UpdateRig rig;
  std::unique_ptr<RecordStore> records;
  TileUpdate tiles;
  UpdateProgress progress{HomesRig::kChunks};
  PageMapping memory = PageMapping::populated(2 * rig.plan.ring_slot_bytes, false, "a ring");
  io::RingBuffer ring{memory.memory(), rig.plan.ring_slot_bytes};
  OptimizerPipeline pipeline{
      rig.shards, {*records, rig.gradients, *rig.home},
      tiles,      progress,
      rig.watch,  ring,
      rig.plan,   OptimizerPipeline::Sides{.on_device = std::vector<bool>(HomesRig::kChunks, false)}};
  std::unique_ptr<UpdateThread> thread;
};

TEST_F(UpdateThreadTest, UpdatesWhatIsAddedOnceItIsAllowedTo) {
  EXPECT_FALSE(thread->busy());
  begin();
  EXPECT_TRUE(thread->busy());
  progress.begin(ChunkId{2});
  thread->add(ChunkId{2});
  thread->allow({rig.steps, {}});
  progress.updated(ChunkId{2}).wait();
  EXPECT_TRUE(is_updated(2));
  EXPECT_FALSE(is_updated(0));
  progress.begin(ChunkId{0});
  thread->add(ChunkId{0});
  thread->close();
  thread->finish();
  EXPECT_FALSE(thread->busy());
  EXPECT_TRUE(is_updated(0));
  rig.expect_updated_parameters(0, rig.home->host_slot(ChunkId{0}));
  thread->finish();  // nothing is open: nothing to wait for
}

TEST_F(UpdateThreadTest, CompletesAllChunksOfAnUpdateThatWasNeverAllowedAndChangesNone) {
  begin();
  add_all();
  thread->finish();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    EXPECT_TRUE(progress.updated(ChunkId{c}).done());
    EXPECT_FALSE(progress.updated(ChunkId{c}).failed());
    EXPECT_FALSE(is_updated(c));
  }
}

TEST_F(UpdateThreadTest, FailsTheChunksThatAFailureLeftUndoneAndThrowsItWhenItIsFinished) {
  rig.gradients.failure = std::make_exception_ptr(std::runtime_error("played"));
  begin();
  thread->allow({rig.steps, {}});
  add_all();
  EXPECT_THROW(thread->finish(), std::runtime_error);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) EXPECT_TRUE(progress.updated(ChunkId{c}).failed());
  EXPECT_FALSE(thread->busy());
  rig.gradients.failure = nullptr;
  begin();
  thread->allow({rig.steps, {}});
  add_all();
  thread->finish();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) EXPECT_TRUE(is_updated(c));
}

TEST_F(UpdateThreadTest, EndsTheUpdateInProgressBeforeItGoes) {
  begin();
  thread->allow({rig.steps, {}});
  add_all();
  thread.reset();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) EXPECT_TRUE(is_updated(c));
}

}  // namespace
}  // namespace terrace::update_thread_test
