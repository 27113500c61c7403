// What a plan gives room to where parameters are of several types, so that chunks differ in their elements.
#include <terrace/offload/plan/memory_plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/base/units.h>

#include "support/offloaders.h"

namespace terrace::memory_plan_test {
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

// The longest share is that of the first rank, and all plan with it.
TEST(MemoryPlan, HasRoomForTheShareOfARankWhereParametersAreDividedOnTheDevice) {
  const FlatSpace space(
      {{"narrow", {7 * kTileElements}, DataType::bf16}, {"wide", {5 * kTileElements}, DataType::fp32, false}},
      4 * kTileElements);
  for (const Placement states : {Placement::none, Placement::cpu}) {
    OffloadOptions options;
    options.states = states;
    options.ranks = 3;
    const MemoryPlan whole = testing::plan_roomy(options, space, {});
    EXPECT_EQ(whole.device_share_bytes, 0u);
    EXPECT_GE(whole.device_slots_minimum, space.chunk_count());
    options.divides_parameters = true;
    for (uint32_t rank = 0; rank < options.ranks; ++rank) {
      options.rank = rank;
      const MemoryPlan divided = testing::plan_roomy(options, space, {});
      // Of 7 tiles in a chunk of bf16 3, and 2 and 1 of those of fp32, with 4 and 1.
      EXPECT_EQ(divided.device_share_bytes, kTileElements * (3 * 2 + (2 + 1) * 4));
      EXPECT_EQ(divided.device_slots_useful * divided.slot_bytes + divided.device_share_bytes -
                    whole.device_slots_useful * whole.slot_bytes,
                useful_device_bytes(divided) - useful_device_bytes(whole));
      EXPECT_LT(divided.device_minimum_bytes, whole.device_minimum_bytes);
    }
    options.ranks = 1, options.rank = 0;
    EXPECT_EQ(testing::plan_roomy(options, space, {}).device_share_bytes, 0u);
  }
}

// Two landings are on their way. The places of other ranks are on the device, and where the host adds, there
// too, beside the own part alone.
TEST(MemoryPlan, HasRoomForGradientsThatGoFromDeviceToDevice) {
  const FlatSpace space({{"w", {7 * kTileElements}, DataType::bf16}}, 4 * kTileElements);
  constexpr uint64_t kShare = 2 * kTileElements * 2, kChunk = 4 * kTileElements * 2;  // of 3 ranks, in bf16
  OffloadOptions options;
  options.ranks = 3, options.micro_batches = 3;
  options.parameters = Placement::cpu;
  options.exchanges_by_copies = true;
  for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
    options.states = states;
    options.gathers_by_copies = true;
    const MemoryPlan by_host = testing::plan_roomy(options, space, {});
    options.gathers_by_copies = false;
    const MemoryPlan plan = testing::plan_roomy(options, space, {});
    const bool stays = states == Placement::none;
    EXPECT_EQ(plan.device_incoming_bytes, 2 * (stays ? 3 : 2) * kShare);
    EXPECT_EQ(plan.device_minimum_bytes - by_host.device_minimum_bytes,
              plan.device_incoming_bytes - (stays ? kShare : 0));
    EXPECT_EQ(plan.landing_slots * plan.landing_slot_bytes, 2 * kShare);
    EXPECT_EQ(plan.incoming_slots * plan.incoming_slot_bytes, stays ? 0 : 2 * 2 * kShare);
    EXPECT_EQ(by_host.host_minimum_bytes - plan.host_minimum_bytes,
              by_host.gather_slots * kChunk + 2 * (kChunk - kShare) + 2 * (stays ? 3 : 1) * kShare);
    options.gradients = GradientOrigin::handed_over;  // they are on the host
    const MemoryPlan handed = testing::plan_roomy(options, space, {});
    EXPECT_EQ(handed.device_incoming_bytes, by_host.device_incoming_bytes);
    EXPECT_EQ(handed.incoming_slots * handed.incoming_slot_bytes, 2 * 3 * kShare);
    options.gradients = GradientOrigin::handed_over_on_device;  // they leave slots of their own
    const MemoryPlan on_device = testing::plan_roomy(options, space, {});
    EXPECT_EQ(on_device.device_incoming_bytes, plan.device_incoming_bytes);
    EXPECT_EQ(on_device.device_handed_bytes(), 2 * kChunk);
    EXPECT_EQ(on_device.device_gradient_slots, 0u);
    EXPECT_EQ(on_device.device_minimum_bytes - on_device.device_slots_minimum * kChunk,
              plan.device_minimum_bytes - plan.device_slots_minimum * kChunk + 2 * kChunk);
    EXPECT_EQ(on_device.host_minimum_bytes, plan.host_minimum_bytes);
    options.gradients = GradientOrigin::leases;
  }
}

// A budget without room for it is found at the first backward use otherwise.
TEST(MemoryPlan, CountsOnRoomForAnyTensorWhereNoUsesAreAnnounced) {
  const FlatSpace space({{"small", {100}, DataType::bf16}, {"large", {10 * kTileElements}, DataType::bf16}},
                        2 * kTileElements);
  OffloadOptions options;
  options.parameters = options.states = Placement::cpu;
  testing::take_least_budgets(options, space, {});
  const MemoryPlan plan = plan_memory(space, {}, options);
  EXPECT_EQ(plan.device_slots_minimum, 2 * space.place(TensorId{1}).chunk_count);
  EXPECT_EQ(plan.device_peak_operation, "large");
  --options.device_budget_bytes;
  try {
    plan_memory(space, {}, options);
    FAIL() << "the least budget was not the least";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("most slots at once are needed by large"));
  }
}

TEST(MemoryPlan, HasRoomOnNvmeForSpilledGradientsInTheTypeOfTheirSums) {
  constexpr uint64_t kChunkElements = 4 * kMiB;  // many blocks, in either type
  constexpr uint64_t kElements = 32 * kChunkElements;
  const FlatSpace space({{"t", {kElements}, DataType::bf16}}, kChunkElements);
  OffloadOptions options;
  options.states = Placement::nvme;
  options.durable = false;
  options.micro_batches = 2;
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    options.accumulation_type = type;
    testing::take_least_budgets(options, space, {});
    const MemoryPlan plan = plan_memory(space, {}, options);
    ASSERT_EQ(plan.spilled_chunks, space.chunk_count());
    EXPECT_EQ(plan.gradient_file_bytes, kElements * bytes_of(type));
  }
}

}  // namespace
}  // namespace terrace::memory_plan_test
