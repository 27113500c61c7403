#include <terrace/offload/offloader.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/allocation_counter.h"
#include "support/sanitized.h"

namespace terrace::offloader_test {
namespace {

class OffloaderPlacements : public ::testing::TestWithParam<Case> {};

TEST_P(OffloaderPlacements, TrainsBitForBitLikePlainVectors) {
  const Case& c = GetParam();
  Rig rig(c);
  Reference reference(rig.specs, c.accumulation, c.accumulation_type);
  expect_same_as_reference(rig, reference);
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(rig.step(step, c.accumulation).applied);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const DataType type : {DataType::bf16, DataType::fp32, DataType::fp16}) {
        for (const uint32_t accumulation : {1u, 3u}) {
          for (const bool tight : {true, false}) {
            Case c{parameters, states, type, accumulation};
            c.tight = tight;
            c.strict = tight;
            c.chunk_elements = tight ? kTileElements : 4 * kTileElements;
            c.policy = accumulation == 1 ? PolicyKind::opt : PolicyKind::gemini;
            c.with_frozen = type == DataType::bf16;
            c.engine = tight ? io::EngineKind::io_uring : io::EngineKind::threads;
            list.push_back(c);
            if (accumulation == 1 || type == DataType::fp32) continue;
            c.accumulation_type = type;
            list.push_back(c);
          }
        }
      }
    }
  }
  return list;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}_{}in{}_{}", name_of(c.parameters), name_of(c.states), name_of(c.type),
                     c.accumulation, name_of(c.accumulation_type), c.tight ? "tight" : "roomy");
}

INSTANTIATE_TEST_SUITE_P(All, OffloaderPlacements, ::testing::ValuesIn(testing::thinned(cases())), case_name);

TEST(Offloader, LearnsItsScheduleWhenNoneWasAnnounced) {
  Case c{Placement::cpu, Placement::cpu};
  c.announced = false;
  c.tight = false;
  Rig rig(c);
  Reference reference(rig.specs, 1);
  for (uint64_t step = 1; step <= 3; ++step) {
    rig.step(step, 1);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

TEST(Offloader, TakesAnOperationThatIsSkippedInOneStep) {
  Case c{Placement::nvme, Placement::nvme};
  c.tight = false;
  Rig rig(c);
  Reference reference(rig.specs, 1);
  for (uint64_t step = 1; step <= 4; ++step) {
    const std::string skip = step == 2 ? "block1" : "";
    rig.step(step, 1, skip);
    reference.step(step, skip);
  }
  expect_same_as_reference(rig, reference);
}

TEST(Offloader, LeavesEverythingAsItWasWhenTheGradientIsNotFinite) {
  Rig rig({Placement::cpu, Placement::nvme});
  rig.step(1, 1);
  const std::vector<std::byte> before = rig.parameters(2);
  rig.offloader->begin_step();
  toy::run_micro_batch(*rig.offloader, rig.specs, 0, "head");
  {
    const std::vector<TensorId> shared = {TensorId{0}};
    const Lease lease(*rig.offloader, "mb0/head/backward", shared, UseKind::backward);
    const GradientView gradient = lease.gradient(TensorId{0});
    toy::store(gradient.data, 5, DataType::bf16, std::numeric_limits<float>::infinity());
  }
  rig.offloader->end_micro_batch();
  const std::vector<OptimizerSettings> groups = toy::groups();
  EXPECT_FALSE(rig.offloader->update({groups, 2, 1.0}).applied);
  EXPECT_EQ(rig.parameters(2), before);
  EXPECT_TRUE(rig.step(2, 1).applied);
}

// Left out, an operation keeps gradients of its neighbours open, and the device has no room for one more.
// Parameters that have no other copy must not make it.
TEST(Offloader, NeverEvictsParametersThatHaveNoOtherCopy) {
  Rig rig({Placement::none, Placement::none, DataType::bf16, 2});
  rig.step(1, 2);
  try {
    rig.step(2, 2, "block1");
    FAIL() << "a gradient took the place of parameters";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(std::string(error.what()).find("raise the device budget"), std::string::npos) << error.what();
  }
}

// Parameters are updated where they are: a device that holds all of them fetches nothing any more.
TEST(Offloader, FetchesNothingWhereTheDeviceHoldsStatesAndParameters) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    Rig rig({.parameters = parameters, .states = Placement::none, .tight = false});
    rig.step(1, 1);
    const OffloadCounters before = rig.offloader->report().counters();
    EXPECT_GT(before.h2d_bytes, 0u);
    rig.step(2, 1);
    const OffloadCounters moved = rig.offloader->report().counters() - before;
    const TrafficBound bound = rig.offloader->report().traffic_bound();
    EXPECT_EQ(moved.h2d_bytes, 0u) << name_of(parameters);
    EXPECT_EQ(bound.h2d_bytes, 0u) << name_of(parameters);
    EXPECT_EQ(bound.param_read_bytes, 0u) << name_of(parameters);
    EXPECT_GE(moved.d2h_bytes, bound.d2h_bytes) << name_of(parameters);
  }
}

TEST(Offloader, MovesExactlyTheBytesOfTheBound) {
  for (const auto& [parameters, accumulation] :
       {std::pair{Placement::cpu, 1u}, {Placement::nvme, 1u}, {Placement::cpu, 3u}, {Placement::nvme, 3u}}) {
    Rig rig({parameters, Placement::nvme, DataType::bf16, accumulation});
    rig.step(1, accumulation);
    rig.step(2, accumulation);
    const OffloadCounters before = rig.offloader->report().counters();
    rig.step(3, accumulation);
    const OffloadCounters moved = rig.offloader->report().counters() - before;
    const TrafficBound bound = rig.offloader->report().traffic_bound();
    EXPECT_EQ(moved.record_read_bytes, bound.record_read_bytes);
    EXPECT_EQ(moved.record_write_bytes, bound.record_write_bytes);
    EXPECT_EQ(moved.param_write_bytes, bound.param_write_bytes);
    EXPECT_EQ(moved.d2h_bytes, bound.d2h_bytes);
    EXPECT_GE(moved.h2d_bytes, bound.h2d_bytes);
    uint64_t records = 0;
    for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk) {
      records += rig.space.chunk(ChunkId{chunk}).tile_count() * RecordLayout{}.tile_bytes();
    }
    EXPECT_EQ(moved.record_read_bytes, records);
  }
}

// A slow link from the device keeps gradients in their slots while the parameters that follow them are on
// their way.
TEST(Offloader, RefillsASlotOnlyAfterItsGradientHasLeft) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::cpu};
    c.d2h_bytes_per_second = 8 * kMiB;
    Rig rig(c);
    Reference reference(rig.specs, 1);
    for (uint64_t step = 1; step <= 2; ++step) {
      rig.step(step, 1);
      reference.step(step);
    }
    expect_same_as_reference(rig, reference);
  }
}

TEST(Offloader, RecordsInMemoryTakeTheirShareOffTheDisk) {
  Case c{Placement::cpu, Placement::nvme};
  c.tight = false;
  c.chunk_elements = kTileElements;
  Rig rig(c);
  const MemoryPlan& plan = rig.offloader->plan();
  ASSERT_GT(plan.host_record_slots, 0u);
  ASSERT_LT(plan.host_record_slots, rig.space.chunk_count());
  const OffloadCounters before = rig.offloader->report().counters();
  rig.step(1, 1);
  const OffloadCounters moved = rig.offloader->report().counters() - before;
  const uint64_t streamed = (rig.space.chunk_count() - plan.host_record_slots) * RecordLayout{}.tile_bytes();
  EXPECT_EQ(moved.record_read_bytes, streamed);
  EXPECT_EQ(moved.record_write_bytes, streamed);
}

TEST(Offloader, CarriesItsStateToAnotherPlacementAndChunkSize) {
  Rig first({Placement::nvme, Placement::nvme});
  first.step(1, 1);
  const std::vector<std::byte> records = first.records();
  EXPECT_EQ(records.size(), first.offloader->state().record_tile_count() * RecordLayout{}.tile_bytes());

  Case other{Placement::none, Placement::none};
  other.chunk_elements = 8 * kTileElements;
  other.tight = false;
  other.strict = false;
  Rig second(other);
  size_t at = 0;
  second.offloader->state().import_records([&](std::span<std::byte> tiles) {
    std::memcpy(tiles.data(), records.data() + at, tiles.size());
    at += tiles.size();
  });
  EXPECT_EQ(at, records.size());
  first.step(2, 1);
  second.step(2, 1);
  for (uint32_t t = 0; t < first.specs.size(); ++t) EXPECT_EQ(first.parameters(t), second.parameters(t));
}

TEST(Offloader, RefusesABudgetBelowTheMinimumAndNamesIt) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  const FlatSpace space(specs, kTileElements);
  OffloadOptions options;
  options.parameters = options.states = Placement::cpu;
  options.device_budget_bytes = 8 * kKiB;
  options.host_budget_bytes = kGiB;
  try {
    plan_memory(space, toy::trace(specs, 1), options);
    FAIL() << "a plan that does not fit was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(std::string(error.what()).find("device"), std::string::npos) << error.what();
    options.device_budget_bytes = plan_memory(space, toy::trace(specs, 1),
                                              [&] {
                                                OffloadOptions roomy = options;
                                                roomy.device_budget_bytes = kGiB;
                                                return roomy;
                                              }())
                                      .device_minimum_bytes;
    EXPECT_NO_THROW(plan_memory(space, toy::trace(specs, 1), options));
    options.device_budget_bytes -= 1;
    EXPECT_THROW(plan_memory(space, toy::trace(specs, 1), options), Error);
  }
}

// Every row of the table of states is walked by training, so that a row taken away makes this red.
TEST(Offloader, WalksEveryRowOfTheTableOfStates) {
  Case c{Placement::cpu, Placement::cpu};
  c.tight = false;
  c.accumulation = 2;
  c.with_frozen = true;
  Rig rig(c);
  rig.step(1, 2);
  // The second micro-batch does without a tensor, and one tensor has a forward use only.
  rig.offloader->begin_step();
  toy::run_micro_batch(*rig.offloader, rig.specs, 0);
  const std::vector<TensorId> weight = {TensorId{2}};
  { const Lease lease(*rig.offloader, "once more/forward", weight, UseKind::forward); }
  rig.offloader->end_micro_batch();
  toy::run_micro_batch(*rig.offloader, rig.specs, 1, "block1");
  const std::vector<TensorId> bias = {TensorId{3}};
  { const Lease lease(*rig.offloader, "only/forward", bias, UseKind::forward); }
  rig.offloader->end_micro_batch();
  const std::vector<OptimizerSettings> groups = toy::groups();
  rig.offloader->update({groups, 2, 0});
  rig.offloader->begin_evaluation();
  { const Lease lease(*rig.offloader, "look/inference", bias, UseKind::inference); }
  rig.offloader->end_evaluation();
  // A step that is given up in the middle of its first micro-batch: one tensor complete, one not.
  rig.offloader->begin_step();
  const std::vector<TensorId> both = {TensorId{0}, TensorId{1}};
  { const Lease lease(*rig.offloader, "mb0/both/forward", both, UseKind::forward); }
  { const Lease lease(*rig.offloader, "mb0/both/backward", both, UseKind::backward); }
  { const Lease lease(*rig.offloader, "both once more/forward", both, UseKind::forward); }
  { const Lease lease(*rig.offloader, "only/forward", bias, UseKind::forward); }
  rig.offloader->abandon_step();
  const TensorStates& states = rig.offloader->report().states();
  for (const Transition& row : kTransitions) {
    EXPECT_GT(states.count(row.from, row.to), 0u)
        << name_of(row.from) << " -> " << name_of(row.to) << ": " << row.when;
  }
}

TEST(Offloader, AnAbandonedStepLeavesNoTrace) {
  for (const Placement states : {Placement::none, Placement::nvme}) {
    Rig rig({Placement::cpu, states});
    Reference reference(rig.specs, 1);
    for (uint64_t step = 1; step <= 3; ++step) {
      rig.offloader->begin_step();
      toy::run_micro_batch(*rig.offloader, rig.specs, 0, step == 2 ? "head" : "");
      if (step == 3) rig.offloader->end_micro_batch();
      rig.offloader->abandon_step();
      rig.step(step, 1);
      reference.step(step);
    }
    expect_same_as_reference(rig, reference);
  }
}

TEST(Offloader, AllocatesNothingInAStepOnceItIsWarm) {
  for (const Placement placement : {Placement::cpu, Placement::nvme}) {
    Rig rig({.parameters = placement, .states = placement, .threads = 1});
    for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
    const std::vector<OptimizerSettings> groups = toy::groups();
    const std::vector<toy::Use> uses = toy::forward_uses(false);
    std::vector<std::pair<std::string, std::vector<TensorId>>> leases;
    for (const char* pass : {"/forward", "/backward"}) {
      for (const toy::Use& use : uses) {
        leases.push_back({"mb0/" + use.name + pass, {}});
        for (uint32_t t : use.tensors) leases.back().second.push_back(TensorId{t});
      }
    }
    std::reverse(leases.begin() + static_cast<ptrdiff_t>(uses.size()), leases.end());
    const uint64_t before = testing::allocations_of_this_thread();
    rig.offloader->begin_step();
    for (size_t l = 0; l < leases.size(); ++l) {
      const Lease lease(*rig.offloader, leases[l].first, leases[l].second,
                        l < uses.size() ? UseKind::forward : UseKind::backward);
    }
    rig.offloader->end_micro_batch();
    rig.offloader->update({groups, 4, 0});
    EXPECT_EQ(testing::allocations_of_this_thread() - before, 0u) << name_of(placement);
  }
}

TEST(Offloader, KeepsAddressesForLife) {
  Rig rig({Placement::cpu, Placement::cpu});
  std::vector<const std::byte*> first;
  for (uint64_t step = 1; step <= 2; ++step) {
    rig.offloader->begin_step();
    const std::vector<TensorId> list = {TensorId{2}};
    {
      const Lease lease(*rig.offloader, "look/forward", list, UseKind::forward);
      first.push_back(lease.parameter<std::byte>(TensorId{2}));
    }
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    rig.offloader->update({groups, step, 0});
  }
  EXPECT_EQ(first[0], first[1]);
}

TEST(OffloaderDeathTest, NamesTheTensorOfAStrayAccess) {
  Rig rig({Placement::cpu, Placement::cpu});
  rig.offloader->begin_step();
  const std::vector<TensorId> list = {TensorId{2}};
  const std::byte* stray = nullptr;
  {
    const Lease lease(*rig.offloader, "look/forward", list, UseKind::forward);
    stray = lease.parameter<std::byte>(TensorId{2});
  }
  EXPECT_DEATH({ [[maybe_unused]] volatile std::byte value = *stray; }, "weight0.*look/forward");
  toy::run_micro_batch(*rig.offloader, rig.specs, 0);
  rig.offloader->end_micro_batch();
}

}  // namespace
}  // namespace terrace::offloader_test
