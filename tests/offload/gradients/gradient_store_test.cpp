// Where gradients are between backward and update: in a slot of their own, in that of their parameters, on
// nvme. The numbers are those of plain vectors wherever they are (offloader_test.cpp walks the placements);
// here: the norm, what a step without an update costs, and how many bytes move.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/gradient.h>

#include "offload/offloader_rig.h"
#include "support/bit_sum.h"
#include "support/sanitized.h"

namespace terrace::gradient_store_test {
namespace {

// Everything but the update of a step.
void run_micro_batches(Rig& rig, uint32_t accumulation, float loss_scale = 1) {
  rig.offloader->begin_step();
  for (uint32_t m = 0; m < accumulation; ++m) {
    toy::run_micro_batch(*rig.offloader, rig.specs, m, "", loss_scale);
    rig.offloader->end_micro_batch();
  }
}

UpdateResult update(Rig& rig, uint64_t number, float loss_scale = 1) {
  const std::vector<OptimizerSettings> groups = toy::groups();
  return rig.offloader->update({groups, number, 0, loss_scale});
}

// A step with an infinite gradient in its last micro-batch; it is not applied.
void overflow(Rig& rig, uint64_t number, uint32_t accumulation) {
  rig.offloader->begin_step();
  for (uint32_t m = 0; m < accumulation; ++m) {
    const bool last = m + 1 == accumulation;
    toy::run_micro_batch(*rig.offloader, rig.specs, m, last ? "head" : "");
    if (last) {
      const std::vector<TensorId> shared = {TensorId{0}};
      const Lease lease(*rig.offloader, fmt::format("mb{}/head/backward", m), shared, UseKind::backward);
      toy::store(lease.gradient(TensorId{0}).data, 5, rig.specs[0].type,
                 std::numeric_limits<float>::infinity());
    }
    rig.offloader->end_micro_batch();
  }
  EXPECT_FALSE(update(rig, number).applied);
}

struct Where {
  Placement parameters;
  Placement states;
  uint32_t accumulation;
};

const Where kEverywhere[] = {
    {Placement::none, Placement::none, 1}, {Placement::none, Placement::none, 3},
    {Placement::none, Placement::nvme, 1}, {Placement::cpu, Placement::cpu, 1},
    {Placement::cpu, Placement::nvme, 1},  {Placement::cpu, Placement::nvme, 3},
    {Placement::nvme, Placement::cpu, 1},  {Placement::nvme, Placement::nvme, 1},
    {Placement::nvme, Placement::nvme, 3},
};

std::string text(const Where& where) {
  return fmt::format("parameters {}, states {}, {} micro-batches", name_of(where.parameters),
                     name_of(where.states), where.accumulation);
}

TEST(GradientNorm, IsTheSameWhereverGradientsLieAndHoweverLargeChunksAre) {
  for (const uint32_t accumulation : {1u, 3u}) {
    std::optional<double> expected;
    for (const Where& where : kEverywhere) {
      if (where.accumulation != accumulation) continue;
      for (const uint64_t tiles : {1, 4}) {
        for (const bool tight : {true, false}) {
          Case c{where.parameters, where.states, DataType::bf16, accumulation};
          c.chunk_elements = tiles * kTileElements;
          c.tight = tight;
          c.threads = tight ? 1 : 2;
          Rig rig(c);
          rig.step(1, accumulation);
          const double norm = rig.step(2, accumulation).gradient_norm;
          EXPECT_GT(norm, 0.0);
          if (!expected) expected = norm;
          EXPECT_EQ(norm, *expected) << text(where);
        }
      }
    }
  }
}

// What the norm is, to the last bit: squares in fp64, 16 lanes a block, and the exact sum of the blocks.
TEST(GradientNorm, IsTheRootOfTheExactSumOfTheBlocks) {
  Case c{Placement::cpu, Placement::cpu, DataType::fp32};
  Rig rig(c);
  Reference reference(rig.specs, 1);
  reference.step(1);
  run_micro_batches(rig, 1);
  const double norm = update(rig, 1).gradient_norm;
  testing::BitSum sum;
  std::vector<float> block(kSumBlockElements);
  for (uint64_t first = 0; first < rig.space.sections()[0].elements; first += kSumBlockElements) {
    std::ranges::fill(block, 0.0f);
    for (uint32_t t = 0; t < rig.specs.size(); ++t) {
      const TensorPlace& place = rig.space.place(TensorId{t});
      for (uint64_t e = 0; e < place.elements; ++e) {
        const uint64_t at = place.first_element + e;
        if (at >= first && at < first + kSumBlockElements) block[at - first] = reference.sum(t)[e];
      }
    }
    sum.add(sum_of_squares_block(InstructionSet::scalar, reinterpret_cast<const std::byte*>(block.data()),
                                 DataType::fp32, block.size()));
  }
  EXPECT_EQ(norm, std::sqrt(sum.value()));
}

TEST(Gradients, AStepThatIsSkippedLeavesEveryWeightAsItWas) {
  uint64_t runs = 0;
  for (const Where& where : kEverywhere) {
    for (const DataType type : {DataType::fp16, DataType::bf16}) {
      for (const bool tight : {true, false}) {
        if (runs++ % testing::kOneIn != 0) continue;
        Case c{where.parameters, where.states, type, where.accumulation};
        c.tight = tight;
        c.with_frozen = true;
        Rig rig(c);
        Reference reference(rig.specs, where.accumulation);
        rig.step(1, where.accumulation);
        reference.step(1);
        overflow(rig, 2, where.accumulation);
        SCOPED_TRACE(text(where));
        expect_same_as_reference(rig, reference);
        EXPECT_TRUE(rig.step(2, where.accumulation).applied);
        reference.step(2);
        overflow(rig, 3, where.accumulation);
        overflow(rig, 3, where.accumulation);
        expect_same_as_reference(rig, reference);
      }
    }
  }
}

TEST(Gradients, WhatTookOverIsRestoredOnceAndItsCostIsCounted) {
  Rig rig({Placement::cpu, Placement::nvme});
  rig.step(1, 1);
  EXPECT_EQ(rig.offloader->report().counters().restored_chunk_count, 0u);
  overflow(rig, 2, 1);
  const OffloadCounters counters = rig.offloader->report().counters();
  EXPECT_EQ(counters.restored_chunk_count, rig.space.chunk_count());
  EXPECT_EQ(counters.restore_read_bytes,
            rig.offloader->state().record_tile_count() * RecordLayout{}.tile_bytes());
  rig.step(2, 1);
  EXPECT_EQ(rig.offloader->report().counters().restored_chunk_count, rig.space.chunk_count());
}

// In the middle of backward only some gradients have taken the place of their parameters.
TEST(Gradients, AStepThatIsAbandonedHalfwayGivesBackWhatItTook) {
  for (const Where& where : kEverywhere) {
    Rig rig({where.parameters, where.states, DataType::bf16, where.accumulation});
    Reference reference(rig.specs, where.accumulation);
    SCOPED_TRACE(text(where));
    rig.step(1, where.accumulation);
    reference.step(1);
    const std::vector<TensorId> block2 = {TensorId{5}, TensorId{6}};
    const std::vector<TensorId> weight1 = {TensorId{4}};
    rig.offloader->begin_step();
    { const Lease lease(*rig.offloader, "mb0/block2/forward", block2, UseKind::forward); }
    { const Lease lease(*rig.offloader, "mb0/weight1/forward", weight1, UseKind::forward); }
    {
      const Lease lease(*rig.offloader, "mb0/block2/backward", block2, UseKind::backward);
      for (uint64_t e = 0; e < 515; ++e)
        toy::store(lease.gradient(TensorId{6}).data, e, DataType::bf16, 1000.0f);
    }
    rig.offloader->abandon_step();
    expect_same_as_reference(rig, reference);
    if (where.parameters == Placement::cpu && where.accumulation == 1) {
      EXPECT_GT(rig.offloader->report().counters().restored_chunk_count, 0u);
      EXPECT_LT(rig.offloader->report().counters().restored_chunk_count, rig.space.chunk_count());
    }
    EXPECT_TRUE(rig.step(2, where.accumulation).applied);
    reference.step(2);
    expect_same_as_reference(rig, reference);
  }
}

TEST(Gradients, RefuseAFetchBetweenLandingAndUpdate) {
  Rig rig({Placement::cpu, Placement::cpu});
  rig.step(1, 1);
  run_micro_batches(rig, 1);
  const std::vector<TensorId> weight = {TensorId{5}};  // not on the device any more
  EXPECT_THROW(Lease(*rig.offloader, "late/forward", weight, UseKind::forward), Error);
  update(rig, 2);
}

// A copy up that no operation came for may still read the slot when the gradient is about to land in it.
TEST(Gradients, WaitForACopyOutOfTheSlotTheyTakeOver) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::cpu};
    c.tight = false;
    c.h2d_bytes_per_second = 8 * kMiB;
    Rig rig(c);
    Reference reference(rig.specs, 1);
    for (uint64_t step = 1; step <= 4; ++step) {
      const std::string skip = step % 2 == 0 ? "block1" : "";
      rig.step(step, 1, skip);
      reference.step(step, skip);
    }
    expect_same_as_reference(rig, reference);
  }
}

}  // namespace
}  // namespace terrace::gradient_store_test
