// What fp16 and the type of accumulators change: loss scales, steps that overflow, memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/sanitized.h"

namespace terrace::precision_test {
namespace {

// An overflow leaves weights and moments as if the step had never been, and its update moves nothing. The
// step after it leaves an operation out, so that a gradient which stayed behind would be found.
void expect_skipped_without_a_trace(const Case& c) {
  Rig rig(c), untroubled(c);
  const OffloadCounters first = rig.offloader->report().counters();
  rig.step(1, c.accumulation, "", 1024);
  const OffloadCounters usual = rig.offloader->report().counters() - first;
  untroubled.step(1, c.accumulation, "", 1024);
  const OffloadCounters before = rig.offloader->report().counters();
  EXPECT_FALSE(rig.step(2, c.accumulation, "", 0x1p20f).applied);
  const OffloadCounters skipped = rig.offloader->report().counters() - before;
  EXPECT_EQ(skipped.record_read_bytes + skipped.record_write_bytes + skipped.param_write_bytes, 0u);
  // The first step began with an empty device; gradients cross in both.
  EXPECT_LE(skipped.h2d_bytes, usual.h2d_bytes);
  EXPECT_LE(skipped.param_read_bytes, usual.param_read_bytes);
  EXPECT_LE(skipped.d2h_bytes, usual.d2h_bytes);
  const UpdateResult result = rig.step(2, c.accumulation, "block1", 512);
  EXPECT_TRUE(result.applied);
  EXPECT_EQ(result.gradient_norm, untroubled.step(2, c.accumulation, "block1", 512).gradient_norm);
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    EXPECT_EQ(rig.parameters(t), untroubled.parameters(t)) << rig.specs[t].name;
  }
}

TEST(OffloaderPrecision, SkipsAStepThatOverflowsWithoutMovingAByteForIt) {
  uint64_t runs = 0;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const uint32_t accumulation : {1u, 2u}) {
        if (runs++ % testing::kOneIn != 0) continue;
        Case c{parameters, states, DataType::fp16, accumulation};
        c.accumulation_type = states == Placement::cpu ? DataType::fp16 : DataType::fp32;
        // Without the operation that is left out, gradients of neighbours stay open for longer.
        c.tight = false;
        SCOPED_TRACE(fmt::format("parameters {}, states {}, {} micro-batches", name_of(parameters),
                                 name_of(states), accumulation));
        expect_skipped_without_a_trace(c);
      }
    }
  }
}

TEST(OffloaderPrecision, DividesGradientsByTheLossScale) {
  Case c{Placement::cpu, Placement::cpu, DataType::fp16};
  Rig scaled(c), plain(c);
  Reference reference(scaled.specs, 1);
  for (uint64_t step = 1; step <= 2; ++step) {
    const UpdateResult result = scaled.step(step, 1, "", 4096);
    // Nothing is rounded twice by a power of two as long as nothing is denormal.
    EXPECT_NEAR(result.gradient_norm / plain.step(step, 1).gradient_norm, 1, 1e-6);
    reference.step(step, "", 4096);
  }
  expect_same_as_reference(scaled, reference);
}

TEST(OffloaderPrecision, HalvesTheAccumulatorsThatAreOfTheParametersType) {
  for (const Placement states : {Placement::none, Placement::cpu}) {
    Case wide{Placement::cpu, states, DataType::bf16, 2};
    Case narrow = wide;
    narrow.accumulation_type = DataType::bf16;
    const MemoryPlan fp32 = Rig(wide).offloader->plan(), bf16 = Rig(narrow).offloader->plan();
    EXPECT_EQ(bf16.accumulator_slot_bytes * 2, fp32.accumulator_slot_bytes);
    const uint64_t saved =
        (fp32.host_accumulator_slots + fp32.device_accumulator_slots) * bf16.accumulator_slot_bytes;
    EXPECT_GT(saved, 0u);
    EXPECT_EQ(bf16.host_bytes + bf16.device_bytes + saved, fp32.host_bytes + fp32.device_bytes);
  }
}

TEST(OffloaderPrecision, RefusesToAccumulateInAnother16BitType) {
  const FlatSpace space(toy::tensors(DataType::bf16, false), kTileElements);
  OffloadOptions options;
  options.micro_batches = 2;
  options.accumulation_type = DataType::fp16;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  try {
    plan_memory(space, {}, options);
    FAIL() << "fp16 sums of bf16 gradients were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("fp32 or bf16"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace terrace::precision_test
