#include <terrace/offload/update/tile_update.h>

#include <gtest/gtest.h>

#include "offload/update/update_rig.h"

namespace terrace::tile_update_test {
namespace {

constexpr ChunkId kChunk{0};
constexpr uint64_t kParameterBytes = kTileElements * sizeof(Bf16);

std::vector<std::byte> masters_of_one(uint64_t tiles) {
  std::vector<std::byte> bytes(tiles * kTileElements * sizeof(float));
  const float one = 1;
  for (uint64_t at = 0; at < bytes.size(); at += sizeof(one)) std::memcpy(&bytes[at], &one, sizeof(one));
  return bytes;
}

// Notes the settings and the places of each run that it is given.
class NotedArithmetic final : public DeviceArithmetic {
 public:
  struct Run {
    float rate;
    TileRun tiles;
  };
  void update_tiles(const OptimizerStep& step, const TileRun& tiles) override {
    runs.push_back({step.step_size, tiles});
  }
  void accumulate(const Accumulation&) override {}
  void set_zero(std::byte*, DataType, uint64_t) override {}
  void sums_of_squares(const std::byte*, DataType, uint64_t, std::span<double>) override {}
  std::vector<Run> runs;
};

TEST(TileUpdate, MakesParametersInTheirHomeSlotWithTheSettingsOfTheirGroup) {
  UpdateRig rig;
  const TileUpdate tiles = rig.make_tiles();
  std::vector<std::byte> records = masters_of_one(2);
  tiles.update(kChunk, 0, 2, records.data());
  EXPECT_EQ(tiles.complete(kChunk), rig.home->host_slot(kChunk));
  rig.expect_updated_parameters(0, rig.home->host_slot(kChunk));
  EXPECT_TRUE(UpdateRig::is_filled(records.data(), 0.5f));
  EXPECT_TRUE(UpdateRig::is_filled(records.data() + rig.plan.ring_slot_bytes, 0.0f));
}

TEST(TileUpdate, MakesParametersOfOneTypeWithTheirGradientOverIt) {
  UpdateRig rig(Placement::none);
  const TileUpdate tiles = rig.make_tiles();
  std::vector<std::byte> records = masters_of_one(2);
  EXPECT_EQ(tiles.output_of(kChunk, 1), rig.gradients.memory[0] + kParameterBytes);
  tiles.update(kChunk, 1, 1, records.data());
  EXPECT_TRUE(UpdateRig::is_filled_bf16(rig.gradients.memory[0], UpdateRig::kGradient)) << "not updated yet";
  tiles.update(kChunk, 0, 1, records.data() + rig.plan.ring_slot_bytes);
  EXPECT_EQ(tiles.complete(kChunk), rig.gradients.memory[0]);
  rig.expect_updated_parameters(0, rig.gradients.memory[0]);
}

TEST(TileUpdate, DrawsParametersTogetherThatWereMadeOverAWiderGradient) {
  UpdateRig rig(Placement::none, DataType::fp32);
  const TileUpdate tiles = rig.make_tiles();
  std::vector<std::byte> records = masters_of_one(2);
  EXPECT_EQ(tiles.output_of(kChunk, 1), rig.gradients.memory[0] + kTileElements * sizeof(float));
  tiles.update(kChunk, 0, 2, records.data());
  EXPECT_EQ(tiles.complete(kChunk), rig.gradients.memory[0]);
  rig.expect_updated_parameters(0, rig.gradients.memory[0]);
}

TEST(TileUpdate, LeavesRunsThatWereMadeElsewhereAsTheyCameBack) {
  UpdateRig rig(Placement::none, DataType::fp32);
  const TileUpdate tiles = rig.make_tiles();
  std::memset(tiles.output_of(kChunk, 0), 1, kParameterBytes);
  std::memset(tiles.output_of(kChunk, 0) + kParameterBytes, 2, kParameterBytes);
  EXPECT_EQ(tiles.complete(kChunk, 2)[kParameterBytes], std::byte{2})
      << "a run of both tiles is in one piece";
}

TEST(TileUpdate, GivesADeviceOneRunForEachGroupWithItsPlaces) {
  UpdateRig rig;
  NotedArithmetic arithmetic;
  const TileUpdate tiles = rig.make_tiles(&arithmetic);
  EXPECT_FALSE(tiles.is_on_workers());
  std::array<std::byte, 3> memory{};
  tiles.update_there(kChunk, 0, 2, {&memory[0], &memory[1], &memory[2]});
  ASSERT_EQ(arithmetic.runs.size(), 2u);
  EXPECT_EQ(arithmetic.runs[0].rate, 1.0f);
  EXPECT_EQ(arithmetic.runs[1].rate, 2.0f);
  EXPECT_EQ(arithmetic.runs[1].tiles.first_element, kTileElements);
  EXPECT_EQ(arithmetic.runs[1].tiles.element_count, kTileElements);
  EXPECT_EQ(arithmetic.runs[1].tiles.record, &memory[0]);
  EXPECT_EQ(arithmetic.runs[1].tiles.gradients, &memory[1]);
  EXPECT_EQ(arithmetic.runs[1].tiles.parameters, &memory[2]);
}

TEST(TileUpdate, ReadsOldParametersWhereRecordsHoldOnlyWhatIsBelowThem) {
  UpdateRig rig;
  EXPECT_EQ(rig.make_tiles().old_parameters_of(kChunk, 1), nullptr);
  rig.plan.record_layout.master = MasterForm::remainder;
  EXPECT_EQ(rig.make_tiles().old_parameters_of(kChunk, 1), rig.home->host_slot(kChunk) + kParameterBytes);
}

TEST(TileUpdate, ChangesNothingInADryRun) {
  UpdateRig rig;
  std::vector<std::byte> records = masters_of_one(2);
  rig.make_tiles(nullptr, true).update(kChunk, 0, 2, records.data());
  EXPECT_TRUE(UpdateRig::is_filled(records.data(), 1.0f));
}

}  // namespace
}  // namespace terrace::tile_update_test
