// Micro-batches that are open together: what lands of a chunk in parts is added in the same order, and ends
// where it would end with one micro-batch after the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/optimizer_cpu/gradient.h>

#include "offload/offloader_rig.h"
#include "support/allocation_counter.h"

namespace terrace::layer_major_test {
namespace {

struct Where {
  Placement parameters;
  Placement states;
  bool spills = false;
  UpdateMode mode = UpdateMode::after_backward;
};

const Where kEverywhere[] = {
    {Placement::none, Placement::none},
    {Placement::cpu, Placement::none},
    {Placement::none, Placement::cpu},
    {Placement::cpu, Placement::cpu, false, UpdateMode::during_backward},
    {Placement::cpu, Placement::nvme, true},
    {Placement::nvme, Placement::nvme, true, UpdateMode::during_backward},
    {Placement::nvme, Placement::nvme, true, UpdateMode::next_forward},
    {Placement::nvme, Placement::nvme, false, UpdateMode::during_backward},
    {Placement::nvme, Placement::cpu, false, UpdateMode::next_forward},
};

Case case_of(const Where& where, uint32_t accumulation, uint64_t tiles) {
  Case c{where.parameters, where.states, DataType::bf16, accumulation};
  c.chunk_elements = tiles * kTileElements;
  c.layer_major = true;
  c.spills = where.spills;
  c.holds_gradients = !where.spills;
  c.mode = where.mode;
  c.with_frozen = tiles == 4;
  return c;
}

std::string text(const Where& where, uint64_t tiles) {
  return fmt::format("parameters {}, states {}, {}, {}, {} tiles", name_of(where.parameters),
                     name_of(where.states), where.spills ? "spilled" : "held", name_of(where.mode), tiles);
}

TEST(LayerMajor, TrainsAsOneMicroBatchAfterTheOtherDoesWhereverThingsAre) {
  constexpr uint32_t kAccumulation = 3;
  for (const Where& where : kEverywhere) {
    for (const uint64_t tiles : {1, 4, 16}) {  // 16: all tensors share one chunk
      SCOPED_TRACE(text(where, tiles));
      Rig rig(case_of(where, kAccumulation, tiles));
      // Where all gradients take less room than the slots to spill them through, they are held.
      EXPECT_TRUE(tiles > 1 || where.spills == (rig.offloader->plan().spilled_chunks > 0));
      Reference reference(rig.specs, kAccumulation);
      for (uint64_t step = 1; step <= 3; ++step) {
        rig.step(step, kAccumulation);
        reference.step(step);
      }
      expect_same_as_reference(rig, reference);
    }
  }
}

// Where sums are rounded, so that their order shows. On the slow link two of a chunk are on their way at
// once.
TEST(LayerMajor, AddsMicroBatchesInTheirOrder) {
  for (const DataType type : {DataType::bf16, DataType::fp32}) {
    for (const uint64_t tiles : {1, 4, 16}) {
      Case c = case_of({Placement::cpu, Placement::cpu}, 4, tiles);
      c.type = c.accumulation_type = type;
      if (tiles == 16) c.d2h_bytes_per_second = 16 * kMiB;
      Rig rig(c);
      Reference reference(rig.specs, 4, type);
      for (uint64_t step = 1; step <= 2; ++step) {
        rig.step(step, 4);
        reference.step(step);
      }
      SCOPED_TRACE(fmt::format("{}, {} tiles", name_of(type), tiles));
      expect_same_as_reference(rig, reference);
    }
  }
}

// A use that only some micro-batches have: its gradient is zero in the others, the first and the last too.
TEST(LayerMajor, CountsZerosOfWhatAMicroBatchDoesNotUse) {
  const std::vector<std::vector<std::string>> steps = {{"block0", "", "block0"},
                                                       {"", "block1", "embed"},
                                                       {"block2", "block2", "block2"},
                                                       {"block1", "block1", ""}};
  for (const Where& where : kEverywhere) {
    for (const uint64_t tiles : {1, 16}) {
      SCOPED_TRACE(text(where, tiles));
      Case c = case_of(where, 3, tiles);
      c.tight = false;  // a chunk waits longer for what is left out
      Rig rig(c);
      Reference reference(rig.specs, 3);
      for (uint64_t step = 1; step <= steps.size(); ++step) {
        rig.step_skipping(step, steps[step - 1]);
        reference.step_skipping(step, steps[step - 1]);
      }
      expect_same_as_reference(rig, reference);
    }
  }
}

TEST(LayerMajor, TheNormIsThatOfOneMicroBatchAfterTheOther) {
  for (const uint64_t tiles : {1, 4, 16}) {
    Case c = case_of({Placement::cpu, Placement::cpu}, 3, tiles);
    c.with_frozen = false;
    Rig rig(c);
    const double norm = rig.step(1, 3).gradient_norm;
    Reference reference(rig.specs, 3);
    reference.step(1);
    double sum = 0;
    std::vector<float> flat(rig.space.sections()[0].elements);
    for (uint32_t t = 0; t < rig.specs.size(); ++t) {
      const TensorPlace& place = rig.space.place(TensorId{t});
      std::ranges::copy(reference.sum(t), flat.begin() + static_cast<ptrdiff_t>(place.first_element));
    }
    for (uint64_t first = 0; first < flat.size(); first += kSumBlockElements) {
      sum += sum_of_squares_block(InstructionSet::scalar, reinterpret_cast<const std::byte*>(&flat[first]),
                                  DataType::fp32, kSumBlockElements);
    }
    EXPECT_EQ(norm, std::sqrt(sum)) << tiles;
  }
}

TEST(LayerMajor, AStepThatIsSkippedOrAbandonedLeavesEveryWeightAsItWas) {
  for (const Where& where : kEverywhere) {
    if (where.mode == UpdateMode::during_backward) continue;  // infinite gradients stop such a run
    SCOPED_TRACE(text(where, 4));
    Rig rig(case_of(where, 3, 4));
    Reference reference(rig.specs, 3);
    rig.step(1, 3);
    reference.step(1);
    rig.offloader->begin_step();
    toy::run_layer_major(*rig.offloader, rig.specs, {"", "", ""}, std::numeric_limits<float>::infinity());
    rig.offloader->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    EXPECT_FALSE(rig.offloader->update({groups, 2, 0, 1}).applied);
    expect_same_as_reference(rig, reference);
    const std::vector<toy::Use> uses = toy::uses_of(rig.specs);
    rig.offloader->begin_step();
    for (uint32_t m = 0; m < 2; ++m) {
      rig.offloader->select_micro_batch(m);
      toy::use_forward(*rig.offloader, uses[3], m);
    }
    for (uint32_t m = 0; m < 2; ++m) {
      rig.offloader->select_micro_batch(m);
      toy::use_backward(*rig.offloader, rig.specs, uses[3], 3, m);
    }
    rig.offloader->abandon_step();
    expect_same_as_reference(rig, reference);
    rig.step(2, 3);
    reference.step(2);
    expect_same_as_reference(rig, reference);
  }
}

// Layers of two chunks, as many as there are landing slots: a gradient that is spilled stays in its slot
// while the micro-batches of its layer go by.
TEST(LayerMajor, ASpilledGradientIsWrittenOnceWhereItsLayerHasTheSlots) {
  constexpr uint32_t kMicroBatches = 6, kChunks = 8;
  std::vector<TensorSpec> specs;
  for (uint32_t t = 0; t < kChunks; ++t) specs.push_back({"t" + std::to_string(t), {kTileElements}});
  const FlatSpace space(specs, kTileElements);
  const auto run = [&](ParameterAccess& access) {
    for (uint32_t layer = kChunks / 2; layer-- > 0;) {
      for (uint32_t m = 0; m < kMicroBatches; ++m) {
        access.select_micro_batch(m);
        for (const uint32_t t : {2 * layer + 1, 2 * layer})
          toy::use_backward(access, specs, {specs[t].name, {t}}, t, m);
      }
    }
  };
  UseRecorder recorder;
  run(recorder);
  const ScratchFolder folder;
  OffloadOptions options = toy::least_nvme_options(space, recorder.take_trace(), folder.path());
  options.micro_batches = kMicroBatches;
  options.layer_major = true;
  options.host_budget_bytes = kGiB;
  options.host_budget_bytes = plan_memory(space, {}, options).host_minimum_bytes;
  SimulatedDevice device({options.device_budget_bytes});
  Workers workers(1);
  MemoryLog log;
  Offloader offloader(space, options, {}, device, workers, log);
  ASSERT_EQ(offloader.plan().spilled_chunks, kChunks);
  ASSERT_EQ(offloader.plan().spill_slots, 2u);
  offloader.state().initialise(
      [](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
  offloader.begin_step();
  run(offloader);
  offloader.end_micro_batch();
  const std::vector<OptimizerSettings> groups = toy::groups();
  offloader.update({groups, 1});
  const uint64_t all = kChunks * kTileElements * sizeof(float);
  EXPECT_EQ(offloader.report().counters().gradient_write_bytes, all);
  EXPECT_EQ(offloader.report().counters().gradient_read_bytes, all);
  EXPECT_EQ(offloader.report().traffic_bound().gradient_write_bytes, all);
}

TEST(LayerMajor, AWarmStepAllocatesNothingOnAnyThread) {
  for (const Where& where : {kEverywhere[1], kEverywhere[3], kEverywhere[4], kEverywhere[5]}) {
    Case c = case_of(where, 3, 1);
    c.strict = false;
    c.engine = io::EngineKind::threads;
    c.threads = 1;
    Rig rig(c);
    const std::vector<TensorUse> prepared = toy::trace(rig.specs, 3, /*layer_major=*/true);
    const std::vector<OptimizerSettings> groups = toy::groups();
    uint64_t before = 0;
    for (uint64_t step = 1; step <= 5; ++step) {
      if (step == 4) before = testing::allocations_of_all_threads();
      const UpdateSettings settings = {groups, step, 0, 1};
      rig.offloader->begin_step();
      rig.offloader->announce_update(settings);
      for (const TensorUse& use : prepared) {
        rig.offloader->select_micro_batch(use.micro_batch);
        const Lease lease(*rig.offloader, use.operation, use.tensors, use.kind);
      }
      rig.offloader->end_micro_batch();
      rig.offloader->update(settings);
    }
    EXPECT_EQ(testing::allocations_of_all_threads() - before, 0u) << text(where, 1);
  }
}

TEST(LayerMajor, ATensorsUsesInOneMicroBatchFollowEachOther) {
  Case c = case_of({Placement::cpu, Placement::cpu}, 2, 1);
  Rig rig(c);
  std::vector<TensorSpec> twice = rig.specs;
  twice[0].backward_uses = 2;
  const FlatSpace space(twice, kTileElements);
  OffloadOptions options;
  options.parameters = options.states = Placement::cpu;
  options.micro_batches = 2;
  options.layer_major = true;
  options.lock_host_memory = false;
  options.device_budget_bytes = options.host_budget_bytes = 64 * kMiB;
  SimulatedDevice device({options.device_budget_bytes});
  Offloader offloader(space, options, {}, device, rig.workers, rig.log);
  offloader.state().initialise(
      [](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
  const std::vector<toy::Use> uses = toy::uses_of(twice);
  offloader.begin_step();
  toy::use_forward(offloader, uses[0], 0);
  toy::use_backward(offloader, twice, uses[0], 0, 0);
  EXPECT_THROW(offloader.select_micro_batch(1), Error);
  EXPECT_THROW(offloader.select_micro_batch(2), Error);
  offloader.abandon_step();
}

}  // namespace
}  // namespace terrace::layer_major_test
