// What a rank answers to those that pull its shares: where they lie, from the version on that is asked for,
// and as long as anybody reads.
#include <terrace/offload/parameters/pulled_parameters.h>

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>

#include <terrace/aio/engine.h>
#include <terrace/offload/pull/rank_pulls.h>

#include "offload/parameters/gather_rig.h"
#include "support/patience.h"

namespace terrace::pulled_parameters_test {
namespace {

constexpr uint32_t kRanks = 3;

// The first of three ranks, with shares on nvme or in host memory, and room for the answer to one of those
// that it reads from nvme.
struct PulledParametersTest : ::testing::Test {
  void make(bool on_nvme) {
    rig.plan.answer_slots = 1;
    cache = std::make_unique<DeviceCache>(rig.space, rig.device, rig.plan, Placement::nvme, PolicyKind::opt,
                                          states, rig.watch, decisions);
    parameters = std::make_unique<PulledParameters>(rig.run, rig.arena, *cache, pulls);
    ParameterHomes homes;
    if (on_nvme) {
      rig.make_store_of(rig.plan.share_bytes);
      rig.fill_store();
      homes.stores = {rig.store.get(), nullptr, &reader};
    } else {
      for (uint32_t c = 0; c < HomesRig::kChunks; ++c) host_slots[c] = memory.data() + c;
    }
    homes.host_slots = host_slots;
    parameters->serve(homes);
  }
  bool open(uint32_t chunk, uint64_t version = 0) { return parameters->open_share(chunk, version, bytes); }
  bool holds(uint32_t chunk) const {
    return bytes.size() == rig.plan.share_bytes && hold_seed(bytes.data(), 100 + chunk, bytes.size());
  }

  ThreadWorld world{{.ranks = kRanks}};
  GatherRig rig{world.rank(0), {}};
  RankPulls pulls{world.rank(0)};
  io::IoThread reader{io::make_engine({.kind = io::EngineKind::threads})};
  TensorStates states{rig.space};
  Decisions decisions{nullptr};
  std::array<std::byte*, HomesRig::kChunks> host_slots{};
  std::array<std::byte, HomesRig::kChunks> memory{};
  std::unique_ptr<DeviceCache> cache;
  std::unique_ptr<PulledParameters> parameters;
  std::span<const std::byte> bytes;
};

TEST_F(PulledParametersTest, KeepAShareFromNvmeUntilItsLastReaderHasIt) {
  make(true);
  ASSERT_TRUE(testing::comes_true([&] { return open(0); }));
  EXPECT_TRUE(holds(0));
  ASSERT_TRUE(open(0)) << "a second rank reads the same answer";
  EXPECT_FALSE(open(1)) << "there is room for one";
  parameters->close_share(0);
  EXPECT_FALSE(open(1)) << "one of its readers is left";
  ASSERT_TRUE(open(0));
  EXPECT_TRUE(holds(0));
  parameters->close_share(0);
  parameters->close_share(0);
  ASSERT_TRUE(testing::comes_true([&] { return open(1); }));
  EXPECT_TRUE(holds(1));
  parameters->close_share(1);
}

TEST_F(PulledParametersTest, AnswerFromHostMemoryWithoutACopy) {
  make(false);
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    ASSERT_TRUE(open(c));
    EXPECT_EQ(bytes.data(), memory.data() + c);
    EXPECT_EQ(bytes.size(), rig.plan.share_bytes);
    parameters->close_share(c);
  }
  EXPECT_EQ(parameters->moved().out, HomesRig::kChunks * rig.plan.share_bytes);
}

TEST_F(PulledParametersTest, AnswerAVersionWhenTheUpdateOfTheChunkIsOver) {
  make(false);
  EXPECT_FALSE(open(1, 1));
  parameters->begin_update();
  EXPECT_FALSE(open(1, 1)) << "the update has begun, and is not over";
  parameters->updated(ChunkId{1});
  EXPECT_TRUE(open(1, 1));
  EXPECT_FALSE(open(2, 1)) << "that of another chunk is not over";
  parameters->end_update([](ChunkId chunk) { return chunk == ChunkId{2}; });
  EXPECT_TRUE(open(0, 1));
  EXPECT_FALSE(open(2, 1)) << "its update goes on beside the next pass";
}

}  // namespace
}  // namespace terrace::pulled_parameters_test
