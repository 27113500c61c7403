// The size of chunks that a budget gets.
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/memory_plan.h>

#include "support/allocation_counter.h"

namespace terrace::chunk_choice_test {
namespace {

// What a step moves over nvme, both ways, beyond what no host budget changes.
uint64_t nvme_bytes(const MemoryPlan& plan) {
  return 2 * uint64_t{plan.record_chunks - plan.host_record_slots} * plan.record_slot_bytes +
         3 * uint64_t{plan.parameter_chunks - plan.host_param_slots} * plan.slot_bytes +
         2 * uint64_t{plan.spilled_chunks} * plan.spill_slot_bytes;
}

std::vector<TensorSpec> layers() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 24; ++i)
    specs.push_back({.name = "layer" + std::to_string(i), .shape = {64, 1024}, .type = DataType::bf16});
  return specs;
}

std::vector<TensorUse> uses_of(const std::vector<TensorSpec>& specs) {
  std::vector<TensorUse> uses;
  for (uint32_t t = 0; t < specs.size(); ++t)
    uses.push_back({"f" + std::to_string(t), UseKind::forward, {TensorId{t}}});
  for (uint32_t t = static_cast<uint32_t>(specs.size()); t-- > 0;)
    uses.push_back({"b" + std::to_string(t), UseKind::backward, {TensorId{t}}});
  return uses;
}

// The slots and buffers of chunks come first; what a larger budget buys must not go to them alone.
TEST(ChunkChoice, TakesNoChunksThatMoveMoreThanASmallerBudgetDoes) {
  const std::vector<TensorSpec> specs = layers();
  const std::vector<TensorUse> uses = uses_of(specs);
  OffloadOptions options;
  options.parameters = options.states = Placement::nvme;
  options.device_budget_bytes = 64 * kMiB;
  uint64_t least = UINT64_MAX;
  uint32_t fitting = 0;
  for (uint64_t kib = 512; kib <= 40 * 1024; kib += 512) {
    options.host_budget_bytes = kib * kKiB;
    try {
      const uint64_t elements = choose_chunk_elements(specs, uses, options, 0);
      const uint64_t bytes = nvme_bytes(plan_memory(FlatSpace(specs, elements), uses, options));
      if (least != UINT64_MAX) {
        EXPECT_LE(bytes, least + least / 8) << kib << " KiB, " << elements << " elements";
      }
      least = std::min(least, bytes);
      ++fitting;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::capacity);
    }
  }
  EXPECT_GT(fitting, 40u);
}

// Whoever uses one tensor at a time gets chunks with which the announced step fits, and the same as if it had
// been announced.
TEST(ChunkChoice, WithoutATraceHasRoomForAnyTensorAndItsGradient) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 16; ++i)
    specs.push_back({.name = "layer" + std::to_string(i), .shape = {1024, 1024}, .type = DataType::bf16});
  const uint64_t tensor_bytes = specs[0].element_count() * bytes_of(DataType::bf16);
  OffloadOptions options;
  options.parameters = options.states = Placement::nvme;
  options.host_budget_bytes = kGiB;
  for (uint64_t quarters = 8; quarters <= 40; ++quarters) {
    options.device_budget_bytes = tensor_bytes * quarters / 4;
    const uint64_t elements = choose_chunk_elements(specs, {}, options, 0);
    EXPECT_EQ(elements, choose_chunk_elements(specs, uses_of(specs), options, 0)) << quarters;
    EXPECT_NO_THROW(plan_memory(FlatSpace(specs, elements), uses_of(specs), options)) << quarters;
  }
  options.device_budget_bytes = 2 * tensor_bytes - 1;
  EXPECT_THROW(choose_chunk_elements(specs, {}, options, 0), Error);
}

// What is kept of each of 2^26 chunks would be 44 GiB, which is known before there is a table of them.
TEST(ChunkChoice, RefusesChunksWhoseBookkeepingHasNoRoomBeforeItMakesTables) {
  const std::vector<TensorSpec> specs = {
      {.name = "huge", .shape = {uint64_t{1} << 38}, .type = DataType::bf16}};
  const std::vector<TensorUse> uses = {{"f", UseKind::forward, {TensorId{0}}},
                                       {"b", UseKind::backward, {TensorId{0}}}};
  OffloadOptions options;
  options.parameters = options.states = Placement::nvme;
  options.device_budget_bytes = kMiB;
  options.host_budget_bytes = 64 * kMiB;
  const uint64_t before = testing::allocated_bytes_of_this_thread();
  for (const bool chosen : {false, true}) {
    try {
      if (chosen) {
        choose_chunk_elements(specs, uses, options, 0);
      } else {
        plan_memory(SpaceLayout(specs, kTileElements), uses, options);
      }
      ADD_FAILURE() << "it fits";
    } catch (const ShortageError& shortage) {
      const std::string text = shortage.what();
      if (chosen) continue;
      EXPECT_EQ(shortage.tiers()[0].needed_bytes, (uint64_t{1} << 26) * kBookkeepingBytesPerChunk) << text;
      EXPECT_NE(text.find("choose larger chunks"), std::string::npos) << text;
    }
  }
  if (testing::kCountsAllocations) {
    EXPECT_LT(testing::allocated_bytes_of_this_thread() - before, 64 * kMiB);
  }
}

}  // namespace
}  // namespace terrace::chunk_choice_test
