// The update of chunks on the host: states at rest in memory or streamed through a ring, parameters that stay
// or leave for the tier file, and what is left of it when something fails.
#include <terrace/offload/update/optimizer_pipeline.h>

#include <gtest/gtest.h>

#include <stdexcept>

#include "offload/update/update_rig.h"

namespace terrace::optimizer_pipeline_test {
namespace {

struct OptimizerPipelineTest : ::testing::Test {
  void make(Placement states, Placement parameters = Placement::cpu, std::vector<io::Fault> faults = {},
            uint32_t rank = 0, uint32_t ranks = 1) {
    rig = std::make_unique<UpdateRig>(parameters, DataType::bf16, rank, ranks);
    records = rig->make_records(states);
    tiles.emplace(rig->make_tiles());
    memory = PageMapping::populated(4 * rig->plan.ring_slot_bytes, false, "a ring");
    ring = std::make_unique<io::RingBuffer>(memory.memory(), rig->plan.ring_slot_bytes);
    engine = std::make_unique<io::FaultEngine>(io::make_engine({.kind = io::EngineKind::threads}),
                                               std::move(faults));
    pipeline = std::make_unique<OptimizerPipeline>(
        rig->shards, OptimizerPipeline::Homes{*records, rig->gradients, *rig->home}, *tiles, progress,
        rig->watch, *ring, rig->plan,
        OptimizerPipeline::Sides{.on_device = std::vector<bool>(HomesRig::kChunks, false)});
  }
  void begin() {
    progress.begin_update();
    pipeline->begin({.engine = engine.get(), .workers = &rig->workers});
  }
  void add(uint32_t chunk) {
    progress.begin(ChunkId{chunk});
    pipeline->add(ChunkId{chunk});
  }
  void begin_all() {
    begin();
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) add(c);
    pipeline->allow({rig->steps, {}});
  }
  void advance() {
    while (pipeline->advance()) {
    }
  }
  float master(uint32_t chunk, uint64_t tile) {
    const std::span<std::byte> bytes = rig->pages.memory().first(rig->plan.ring_slot_bytes);
    records->read(ChunkId{chunk}, tile, bytes);
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return UpdateRig::is_filled(bytes.data(), value) ? value : -1;
  }
  void expect_updated() {
    EXPECT_EQ(rig->gradients.released.size(), HomesRig::kChunks);
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      EXPECT_TRUE(progress.updated(ChunkId{c}).done());
      for (uint64_t t = 0; t < UpdateRig::kTiles; ++t) EXPECT_EQ(master(c, t), UpdateRig::updated(c, t));
    }
  }

  UpdateProgress progress{HomesRig::kChunks};
  std::unique_ptr<UpdateRig> rig;
  std::unique_ptr<RecordStore> records;
  std::optional<TileUpdate> tiles;
  PageMapping memory = PageMapping::populated(page_bytes(), false, "a ring");
  std::unique_ptr<io::RingBuffer> ring;
  std::unique_ptr<io::FaultEngine> engine;
  std::unique_ptr<OptimizerPipeline> pipeline;
};

TEST_F(OptimizerPipelineTest, UpdatesEveryChunkWhereverItsStatesLive) {
  for (const Placement states : {Placement::cpu, Placement::nvme}) {
    make(states);
    begin_all();
    EXPECT_FALSE(pipeline->idle());
    advance();
    EXPECT_TRUE(pipeline->idle());
    pipeline->end();
    expect_updated();
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c)
      rig->expect_updated_parameters(c, rig->home->host_slot(ChunkId{c}));
    const uint64_t bytes = states == Placement::nvme ? HomesRig::kChunks * rig->plan.record_slot_bytes : 0;
    EXPECT_EQ(pipeline->totals().record_read_bytes, bytes);
    EXPECT_EQ(pipeline->totals().record_write_bytes, bytes);
  }
}

// The last of three ranks has none of a chunk's two tiles, and takes part all the same.
TEST_F(OptimizerPipelineTest, UpdatesTheTilesOfItsRank) {
  for (const Placement states : {Placement::cpu, Placement::nvme}) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank);
      make(states, Placement::cpu, {}, rank, 3);
      begin_all();
      advance();
      EXPECT_TRUE(pipeline->idle());
      pipeline->end();
      EXPECT_EQ(rig->gradients.released.size(), HomesRig::kChunks);
      uint64_t tiles_of_rank = 0;
      for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
        EXPECT_TRUE(progress.updated(ChunkId{c}).done());
        const ShardTiles own = rig->shards.own(ChunkId{c});
        tiles_of_rank += own.tile_count;
        for (uint64_t t = 0; t < own.tile_count; ++t) {
          const float expected = UpdateRig::updated(c, own.first_tile + t);
          EXPECT_EQ(master(c, t), expected);
          EXPECT_TRUE(UpdateRig::is_filled_bf16(
              rig->home->host_slot(ChunkId{c}) + t * kTileElements * sizeof(Bf16), expected));
        }
      }
      EXPECT_EQ(tiles_of_rank, rank < 2 ? HomesRig::kChunks : 0);
      EXPECT_EQ(pipeline->totals().record_read_bytes,
                states == Placement::nvme ? tiles_of_rank * rig->plan.ring_slot_bytes : 0);
    }
  }
}

TEST_F(OptimizerPipelineTest, ChangesNothingBeforeItIsAllowedTo) {
  for (const Placement states : {Placement::cpu, Placement::nvme}) {
    make(states);
    begin();
    add(0);
    advance();
    EXPECT_EQ(pipeline->totals().record_write_bytes, 0u);
    EXPECT_EQ(pipeline->totals().record_read_bytes > 0, states == Placement::nvme)
        << "what streams is read ahead";
    pipeline->end();
    EXPECT_FALSE(progress.updated(ChunkId{0}).done());
    progress.complete(ChunkId{0});
    EXPECT_EQ(master(0, 0), 1.0f);
    EXPECT_TRUE(rig->gradients.released.empty());
  }
}

TEST_F(OptimizerPipelineTest, WaitsWithAChunkWhoseGradientIsNotCompleteAndThoseBehindIt) {
  make(Placement::cpu);
  rig->gradients.complete[1] = false;
  begin_all();
  advance();
  EXPECT_FALSE(pipeline->idle());
  EXPECT_EQ(rig->gradients.released, std::vector{ChunkId{0}});
  EXPECT_EQ(master(2, 0), 1.0f);
  rig->gradients.complete[1] = true;
  advance();
  pipeline->end();
  expect_updated();
}

TEST_F(OptimizerPipelineTest, SendsParametersWithoutAHomeSlotToTheTierFileAndKeepsTheirGradientsMeanwhile) {
  make(Placement::cpu, Placement::nvme);
  begin_all();
  advance();
  pipeline->end();
  expect_updated();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    rig->home->read(ChunkId{c}, rig->pages.memory().data());
    rig->expect_updated_parameters(c, rig->pages.memory().data());
  }
}

TEST_F(OptimizerPipelineTest, ThrowsAFailedReadAndIsReadyForAnotherUpdateAfterItsEnd) {
  make(Placement::nvme, Placement::cpu, {{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  begin_all();
  const Error failure = error_of([&] { advance(); });
  EXPECT_EQ(failure.kind(), ErrorKind::io);
  pipeline->fail(std::make_exception_ptr(failure));
  EXPECT_EQ(error_of([&] { pipeline->end(); }).kind(), ErrorKind::io);
  bool all_done = true;
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    if (progress.updated(ChunkId{c}).done()) continue;
    all_done = false;
    progress.complete(ChunkId{c});
  }
  EXPECT_FALSE(all_done);
  EXPECT_EQ(ring->free_count(), ring->slot_count());
  begin_all();
  advance();
  EXPECT_TRUE(pipeline->idle());
  pipeline->end();
}

TEST_F(OptimizerPipelineTest, ThrowsTheFirstReasonToStopWhenItEnds) {
  make(Placement::cpu);
  rig->gradients.failure = std::make_exception_ptr(std::runtime_error("the first"));
  begin_all();
  EXPECT_THROW(advance(), std::runtime_error);
  pipeline->fail(rig->gradients.failure);
  pipeline->fail(std::make_exception_ptr(std::logic_error("a later one")));
  EXPECT_THROW(pipeline->end(), std::runtime_error);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    EXPECT_FALSE(progress.updated(ChunkId{c}).done());
    progress.complete(ChunkId{c});
  }
}

}  // namespace
}  // namespace terrace::optimizer_pipeline_test
