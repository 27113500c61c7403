// What a plan gives room to where parameters are of several types, so that chunks differ in their elements.
#include <terrace/offload/plan/memory_plan.h>

#include <gtest/gtest.h>

#include "support/offloaders.h"

namespace terrace {
namespace {

// Half of the updates run on the device. `narrow` says whether parameters in bf16 are trained, or in fp32.
MemoryPlan plan_of_both_types(bool narrow, Placement states) {
  const FlatSpace space({{"narrow", {8 * kTileElements}, DataType::bf16, narrow},
                         {"wide", {8 * kTileElements}, DataType::fp32, !narrow}},
                        2 * kTileElements);
  OffloadOptions options;
  options.states = states;
  options.durable = false;
  options.processor_share = 0.5;
  return testing::plan_roomy(options, space, {});
}

TEST(MemoryPlan, HasRoomForTheTilesOfTheLongestChunkThatIsTrained) {
  for (const bool narrow : {true, false}) {
    const uint64_t tiles = narrow ? 4 : 2;
    for (const Placement states : {Placement::cpu, Placement::nvme}) {
      const MemoryPlan plan = plan_of_both_types(narrow, states);
      EXPECT_EQ(plan.record_slot_bytes, tiles * plan.record_layout.tile_bytes());
      EXPECT_EQ(plan.ring_slot_bytes, plan.record_slot_bytes);
      EXPECT_GT(plan.device_update_chunks(), 0u);
      EXPECT_EQ(plan.device_lane_tiles, tiles);
    }
  }
}

}  // namespace
}  // namespace terrace
