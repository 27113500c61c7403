// Runs of tiles on their way through the memory of a device, which the workers compute in or which is played.
#include <terrace/offload/update/device_lanes.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "memory/device/forwarding_device.h"
#include "offload/update/update_rig.h"

namespace terrace::device_lanes_test {
namespace {

// Fails for runs of one group.
class FailingArithmetic final : public DeviceArithmetic {
 public:
  void update_tiles(const OptimizerStep& step, const TileRun& tiles) override {
    if (step.step_size == 1.0f) throw std::runtime_error("played");
    terrace::update_tiles(InstructionSet::scalar, step, tiles);
  }
  void accumulate(const Accumulation&) override {}
  void set_zero(std::byte*, DataType, uint64_t) override {}
  void sums_of_squares(const std::byte*, DataType, uint64_t, std::span<double>) override {}
};

// Its first copy to the host fails.
class FailingCopy final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                         Event& done, const CopyNote& note) override {
    if (!std::exchange(has_failed_, true))
      return done.complete_one(std::make_exception_ptr(std::runtime_error("played")));
    ForwardingDevice::copy_work_to_host(destination, work, bytes, after, done, note);
  }

 private:
  bool has_failed_ = false;
};

struct DeviceLanesTest : ::testing::Test {
  DeviceLanesTest() : records(rig.make_records(Placement::cpu)) {
    rig.plan.device_lanes = 2;
    rig.plan.device_lane_tiles = 1;
    rig.plan.device_lane_gradient_bytes = rig.plan.device_lane_parameter_bytes = parameter_tile_bytes;
    rig.plan.device_granularity_bytes = rig.device.granularity_bytes();
  }
  void make(DeviceArithmetic* arithmetic = nullptr, bool dry = false) {
    tiles.emplace(rig.make_tiles(arithmetic, dry));
    lanes = std::make_unique<DeviceLanes>(*tiles, rig.device, rig.workers, rig.watch, rig.plan, dry);
  }
  LaneRun run(uint32_t chunk, uint64_t tile) {
    return {.chunk = ChunkId{chunk},
            .first_tile = tile,
            .tile_count = 1,
            .records = records->resident(ChunkId{chunk}) + tile * rig.plan.ring_slot_bytes,
            .gradients = tiles->gradients_of(ChunkId{chunk}, tile),
            .fresh = tiles->output_of(ChunkId{chunk}, tile)};
  }
  void send_all() {
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
      for (uint64_t t = 0; t < UpdateRig::kTiles; ++t) lanes->send(run(c, t));
    }
  }
  LaneRun next() {
    lanes->wait_for_one();
    return *lanes->take_back();
  }

  const uint64_t parameter_tile_bytes = kTileElements * sizeof(Bf16);
  UpdateRig rig;
  std::unique_ptr<RecordStore> records;
  std::optional<TileUpdate> tiles;
  std::unique_ptr<DeviceLanes> lanes;
};

TEST_F(DeviceLanesTest, TakeMoreRunsThanThereAreLanesAndGiveThemBackInTheirOrder) {
  make();
  EXPECT_TRUE(lanes->empty());
  EXPECT_FALSE(lanes->take_back().has_value());
  send_all();
  EXPECT_FALSE(lanes->empty());
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    for (uint64_t t = 0; t < UpdateRig::kTiles; ++t) {
      const LaneRun back = next();
      EXPECT_EQ(back.chunk, ChunkId{c});
      EXPECT_EQ(back.first_tile, t);
      EXPECT_TRUE(UpdateRig::is_filled(back.records, UpdateRig::updated(c, t)));
    }
    rig.expect_updated_parameters(c, rig.home->host_slot(ChunkId{c}));
  }
  EXPECT_TRUE(lanes->empty());
  const uint64_t runs = HomesRig::kChunks * UpdateRig::kTiles;
  EXPECT_EQ(lanes->h2d_bytes(), runs * (rig.plan.ring_slot_bytes + parameter_tile_bytes));
  EXPECT_EQ(lanes->d2h_bytes(), runs * (rig.plan.ring_slot_bytes + parameter_tile_bytes));
  EXPECT_EQ(rig.device.h2d_bytes(), lanes->h2d_bytes());
  EXPECT_EQ(rig.device.d2h_bytes(), lanes->d2h_bytes());
}

TEST_F(DeviceLanesTest, MakeParametersWhereTheyLiveOnTheDevice) {
  make();
  const std::span<std::byte> there = rig.device.allocate_work_memory(parameter_tile_bytes);
  LaneRun sent = run(1, 0);
  sent.fresh = nullptr;
  sent.there = there.data();
  lanes->send(sent);
  next();
  EXPECT_TRUE(UpdateRig::is_filled_bf16(there.data(), UpdateRig::updated(1, 0)));
  EXPECT_EQ(lanes->d2h_bytes(), rig.plan.ring_slot_bytes);
}

TEST_F(DeviceLanesTest, ThrowTheFailureOfARunWhereItIsTakenBackAndGoOnWithTheNext) {
  FailingArithmetic arithmetic;
  make(&arithmetic);
  lanes->send(run(0, 0));
  lanes->send(run(0, 1));
  EXPECT_THROW(next(), std::runtime_error);
  EXPECT_EQ(next().first_tile, 1u);
  EXPECT_TRUE(UpdateRig::is_filled(records->resident(ChunkId{0}), 1.0f)) << "as it was";
  EXPECT_TRUE(UpdateRig::is_filled(records->resident(ChunkId{0}) + rig.plan.ring_slot_bytes, 0.0f));
}

TEST_F(DeviceLanesTest, ThrowTheFailureOfACopyBackWhereItsRunIsTakenBack) {
  FailingCopy device(rig.device);
  tiles.emplace(rig.make_tiles());
  lanes = std::make_unique<DeviceLanes>(*tiles, device, rig.workers, rig.watch, rig.plan, false);
  lanes->send(run(0, 0));
  lanes->send(run(0, 1));
  EXPECT_THROW(next(), std::runtime_error);
  EXPECT_EQ(next().first_tile, 1u);
  EXPECT_TRUE(UpdateRig::is_filled(records->resident(ChunkId{0}) + rig.plan.ring_slot_bytes, 0.0f));
  lanes.reset();
}

TEST_F(DeviceLanesTest, ForgetWhatWasSentAndItsFailureWhenTheyFinish) {
  FailingArithmetic arithmetic;
  make(&arithmetic);
  send_all();
  lanes->finish();
  EXPECT_TRUE(lanes->empty());
  EXPECT_FALSE(lanes->take_back().has_value());
  lanes->send(run(1, 1));
  EXPECT_EQ(next().chunk, ChunkId{1});
}

TEST_F(DeviceLanesTest, CountRunsOfADryUpdateAndAreDoneWithThemAtOnce) {
  make(nullptr, true);
  send_all();
  for (uint64_t r = 0; r < HomesRig::kChunks * UpdateRig::kTiles; ++r)
    ASSERT_TRUE(lanes->take_back().has_value());
  EXPECT_TRUE(lanes->empty());
  EXPECT_GT(lanes->h2d_bytes(), 0u);
  EXPECT_EQ(rig.device.h2d_bytes(), 0u);
}

}  // namespace
}  // namespace terrace::device_lanes_test
