// What a plan leaves to activations that a program saves: the share that costs least at worst, a budget that
// leaves what is needed, and chunks that leave more.
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/plan/saved_room.h>

namespace terrace::saved_room_test {
namespace {

std::vector<TensorSpec> layers() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 24; ++i)
    specs.push_back({.name = "layer" + std::to_string(i), .shape = {64, 1024}, .type = DataType::bf16});
  return specs;
}

OffloadOptions saving(Placement states, Placement saved, uint32_t micro_batches) {
  OffloadOptions options;
  options.parameters = Placement::cpu;
  options.states = states;
  options.saved_activations = saved;
  options.micro_batches = micro_batches;
  options.device_budget_bytes = options.host_budget_bytes = 64 * kMiB;
  return options;
}

// The bytes that move over nvme in a step, of `wanted` bytes that are saved in each micro-batch and of
// records that are not kept, if so many bytes are left to what is saved.
uint64_t moved(uint64_t left, uint64_t wanted, uint64_t micro_batches) {
  return 2 * micro_batches * (wanted - std::min(wanted, left)) + 2 * left;
}

uint64_t worst_regret(uint64_t rest, uint64_t left, uint64_t micro_batches) {
  uint64_t worst = 0;
  for (uint64_t wanted = 0; wanted <= 2 * rest; ++wanted) {
    uint64_t least = UINT64_MAX;
    for (uint64_t other = 0; other <= rest; ++other)
      least = std::min(least, moved(other, wanted, micro_batches));
    worst = std::max(worst, moved(left, wanted, micro_batches) - least);
  }
  return worst;
}

TEST(SavedRoom, LeavesWhatCostsLeastAtWorst) {
  constexpr uint64_t kRest = 120;
  for (const uint32_t micro_batches : {2, 3, 4, 6, 8}) {
    const OffloadOptions options = saving(Placement::nvme, Placement::nvme, micro_batches);
    const uint64_t left = room_for_saved(kRest, options).before_records;
    EXPECT_EQ(left, kRest * (micro_batches - 1) / micro_batches);
    for (uint64_t other = 0; other <= kRest; ++other)
      EXPECT_LE(worst_regret(kRest, left, micro_batches), worst_regret(kRest, other, micro_batches)) << other;
  }
}

TEST(SavedRoom, IsHalfWhereAByteOfEachSavesTheSame) {
  OffloadOptions options = saving(Placement::nvme, Placement::nvme, 1);
  EXPECT_EQ(room_for_saved(120, options).before_records, 60u);
  options.micro_batches = 8;
  EXPECT_EQ(room_for_saved(120, options).before_frozen, 60u) << "a frozen parameter is read in each of them";
  options.layer_major = true;
  EXPECT_EQ(room_for_saved(120, options).before_records, 60u);
  options.saved_activations = Placement::none;
  EXPECT_EQ(room_for_saved(120, options).before_records, 0u);
}

TEST(SavedRoom, OfAPlanIsWhatRecordsLeave) {
  const FlatSpace space(layers(), kTileElements);
  const uint64_t needed =
      plan_memory(space, {}, saving(Placement::nvme, Placement::none, 1)).host_minimum_bytes;
  for (const uint32_t micro_batches : {1, 4}) {
    OffloadOptions options = saving(Placement::nvme, Placement::nvme, micro_batches);
    options.host_budget_bytes = needed + 12 * kMiB;
    const MemoryPlan plan = plan_memory(space, {}, options);
    EXPECT_EQ(plan.saved_activation_bytes, options.host_budget_bytes - plan.host_bytes);
    const uint64_t records = plan.host_record_slots * plan.record_slot_bytes;
    const uint64_t rest = plan.saved_activation_bytes + records;
    const uint64_t share = rest / std::max(2u, micro_batches);
    EXPECT_LE(records, share);
    EXPECT_GT(records + plan.record_slot_bytes, share);
  }
}

TEST(SavedRoom, IsKeptInAnyCaseWhereItIsKnown) {
  const FlatSpace space(layers(), kTileElements);
  OffloadOptions options = saving(Placement::nvme, Placement::cpu, 1);
  const uint64_t without = plan_memory(space, {}, options).host_minimum_bytes;
  options.saved_least_bytes = 5 * kMiB;
  EXPECT_EQ(plan_memory(space, {}, options).host_minimum_bytes, without + 5 * kMiB);
  options.host_budget_bytes = without + 5 * kMiB;
  EXPECT_EQ(plan_memory(space, {}, options).saved_activation_bytes, 5 * kMiB);
  options.host_budget_bytes -= 1;
  try {
    plan_memory(space, {}, options);
    FAIL() << "a byte is missing";
  } catch (const ShortageError& shortage) {
    ASSERT_EQ(shortage.tiers().size(), 1u);
    EXPECT_EQ(shortage.tiers().front().needed_bytes, without + 5 * kMiB);
    EXPECT_NE(std::string(shortage.what()).find("saved activations 5.00 MiB"), std::string::npos);
  }
}

TEST(SavedRoom, ABudgetThatLeavesSoMuchIsTheLeast) {
  const FlatSpace space(layers(), kTileElements);
  for (const Placement states : {Placement::cpu, Placement::nvme}) {
    for (const uint32_t micro_batches : {1, 4}) {
      OffloadOptions options = saving(states, Placement::cpu, micro_batches);
      options.host_budget_bytes = plan_memory(space, {}, options).host_minimum_bytes + 2 * kMiB;
      for (const uint64_t bytes : {uint64_t{1}, 3 * kMiB, 20 * kMiB}) {
        options.host_budget_bytes = budget_that_leaves(bytes, space, {}, options);
        EXPECT_GE(plan_memory(space, {}, options).saved_activation_bytes, bytes);
        options.host_budget_bytes -= 1;
        const MemoryPlan less = plan_needs(space, {}, options);
        EXPECT_TRUE(!fits(less, options) || less.saved_activation_bytes < bytes);
      }
    }
  }
}

// The bytes that move over nvme in a step of four micro-batches in which more is saved than host memory
// holds.
uint64_t moved_with(const MemoryPlan& plan, const OffloadOptions& options) {
  uint64_t bytes = 8 * (options.host_budget_bytes - plan.saved_activation_bytes);
  bytes += 8 * uint64_t{plan.spilled_chunks} * plan.spill_slot_bytes;
  if (options.states == Placement::nvme)
    bytes += 2 * uint64_t{plan.record_chunks - plan.host_record_slots} * plan.record_slot_bytes;
  if (options.parameters == Placement::nvme)
    bytes += 3 * uint64_t{plan.parameter_chunks - plan.host_param_slots} * plan.slot_bytes;
  return bytes;
}

// Slots and buffers of large chunks would take room from them.
TEST(SavedRoom, CountsWhereTheSizeOfChunksIsChosen) {
  const std::vector<TensorSpec> specs = layers();
  uint32_t more = 0, fitting = 0;
  for (const Placement place : {Placement::cpu, Placement::nvme}) {
    for (uint64_t kib = 2048; kib <= 40 * 1024; kib += 512) {
      OffloadOptions options = saving(place, Placement::nvme, 4);
      options.parameters = place;
      options.host_budget_bytes = kib * kKiB;
      OffloadOptions without = options;
      without.saved_activations = Placement::none;
      try {
        const auto plan_of = [&](const OffloadOptions& chosen_for) {
          const uint64_t elements = choose_chunk_elements(specs, {}, chosen_for, 0);
          return plan_memory(FlatSpace(specs, elements), {}, options);
        };
        const MemoryPlan with = plan_of(options), other = plan_of(without);
        ++fitting;
        more += with.saved_activation_bytes > other.saved_activation_bytes / 10 * 11 ? 1 : 0;
        EXPECT_LE(moved_with(with, options), moved_with(other, options) / 8 * 9) << kib << " KiB";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::capacity);
      }
    }
  }
  EXPECT_GT(fitting, 60u);
  EXPECT_GT(more, fitting / 10) << "the size is chosen as without them";
}

}  // namespace
}  // namespace terrace::saved_room_test
