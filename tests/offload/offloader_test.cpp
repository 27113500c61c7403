#include <terrace/offload/offloader.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/base/error.h>

#include "offload/toy_training.h"
#include "support/allocation_counter.h"

namespace terrace {
namespace {

using toy::Reference;
using toy::ScratchFolder;

struct Case {
  Placement parameters;
  Placement states;
  DataType type = DataType::bf16;
  uint32_t accumulation = 1;
  uint64_t chunk_elements = kTileElements;
  PolicyKind policy = PolicyKind::opt;
  bool tight = true;
  bool strict = true;
  bool announced = true;
  bool with_frozen = false;
  io::EngineKind engine = io::EngineKind::io_uring;
  DataType accumulation_type = DataType::fp32;
};

// An offloader with everything it needs.
class Rig {
 public:
  explicit Rig(const Case& c, size_t threads = 2)
      : specs(toy::tensors(c.type, c.with_frozen)), space(specs, c.chunk_elements), workers(threads) {
    const std::vector<TensorUse> uses = toy::trace(specs, c.accumulation);
    OffloadOptions options;
    options.parameters = c.parameters;
    options.states = c.states;
    options.parameter_path = options.state_path = folder.path();
    options.accumulation_steps = c.accumulation;
    options.accumulation_type = c.accumulation_type;
    options.policy = c.policy;
    options.io.kind = c.engine;
    options.lock_host_memory = false;
    options.device_budget_bytes = options.host_budget_bytes = kGiB;
    const MemoryPlan roomy = plan_memory(space, uses, options);
    options.device_budget_bytes = c.tight ? roomy.device_minimum_bytes : useful_device_bytes(roomy);
    // Tight: nothing is cached. Else about half of the streamed chunks are.
    options.host_budget_bytes =
        c.tight ? roomy.host_minimum_bytes : (roomy.host_minimum_bytes + roomy.host_bytes) / 2;
    device = std::make_unique<SimulatedDevice>(
        SimulatedDeviceOptions{options.device_budget_bytes, c.strict, 0, 0});
    offloader = std::make_unique<Offloader>(space, options, c.announced ? uses : std::vector<TensorUse>(),
                                            *device, workers, log);
    offloader->initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = toy::initial_value(index_of(tensor), first + e);
    });
  }

  UpdateResult step(uint64_t number, uint32_t accumulation, const std::string& skip = "",
                    float loss_scale = 1) {
    offloader->begin_step();
    for (uint32_t m = 0; m < accumulation; ++m) {
      toy::run_micro_batch(*offloader, specs, m, skip, loss_scale);
      offloader->end_micro_batch();
    }
    const std::vector<AdamSettings> groups = toy::groups();
    return offloader->update({groups, number, 0, loss_scale});
  }

  std::vector<std::byte> parameters(uint32_t tensor) {
    std::vector<std::byte> bytes(specs[tensor].element_count() * bytes_of(specs[tensor].type));
    offloader->read_parameter(TensorId{tensor}, bytes);
    return bytes;
  }

  std::vector<TensorSpec> specs;
  FlatSpace space;
  ScratchFolder folder;
  MemoryLog log;
  Workers workers;
  std::unique_ptr<SimulatedDevice> device;
  std::unique_ptr<Offloader> offloader;
};

void expect_same_as_reference(Rig& rig, const Reference& reference) {
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    EXPECT_EQ(rig.parameters(t), reference.parameters(t)) << rig.specs[t].name;
  }
}

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
            c.policy = accumulation == 1 ? PolicyKind::opt : PolicyKind::lru;
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

INSTANTIATE_TEST_SUITE_P(All, OffloaderPlacements, ::testing::ValuesIn(cases()), case_name);

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
  const std::vector<AdamSettings> groups = toy::groups();
  EXPECT_FALSE(rig.offloader->update({groups, 2, 1.0}).applied);
  EXPECT_EQ(rig.parameters(2), before);
  EXPECT_TRUE(rig.step(2, 1).applied);
}

// An overflow leaves weights and moments as if the step had never been, and its update moves nothing. The
// step after it leaves an operation out, so that a gradient which stayed behind would be found.
void expect_skipped_without_a_trace(const Case& c) {
  Rig rig(c), untroubled(c);
  const OffloadCounters first = rig.offloader->counters();
  rig.step(1, c.accumulation, "", 1024);
  const OffloadCounters usual = rig.offloader->counters() - first;
  untroubled.step(1, c.accumulation, "", 1024);
  const OffloadCounters before = rig.offloader->counters();
  EXPECT_FALSE(rig.step(2, c.accumulation, "", 0x1p20f).applied);
  const OffloadCounters skipped = rig.offloader->counters() - before;
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

TEST(Offloader, SkipsAStepThatOverflowsWithoutMovingAByteForIt) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const uint32_t accumulation : {1u, 2u}) {
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

TEST(Offloader, DividesGradientsByTheLossScale) {
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

TEST(Offloader, HalvesTheAccumulatorsThatAreOfTheParametersType) {
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

TEST(Offloader, RefusesToAccumulateInAnother16BitType) {
  const FlatSpace space(toy::tensors(DataType::bf16, false), kTileElements);
  OffloadOptions options;
  options.accumulation_steps = 2;
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

TEST(Offloader, MovesExactlyTheBytesOfTheBound) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::nvme};
    c.tight = true;
    Rig rig(c);
    rig.step(1, 1);
    rig.step(2, 1);
    const OffloadCounters before = rig.offloader->counters();
    rig.step(3, 1);
    const OffloadCounters moved = rig.offloader->counters() - before;
    const TrafficBound bound = rig.offloader->traffic_bound();
    EXPECT_EQ(moved.record_read_bytes, bound.record_read_bytes);
    EXPECT_EQ(moved.record_write_bytes, bound.record_write_bytes);
    EXPECT_EQ(moved.param_write_bytes, bound.param_write_bytes);
    EXPECT_EQ(moved.d2h_bytes, bound.d2h_bytes);
    EXPECT_GE(moved.h2d_bytes, bound.h2d_bytes);
    uint64_t records = 0;
    for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk) {
      records += rig.space.chunk(ChunkId{chunk}).record_bytes();
    }
    EXPECT_EQ(moved.record_read_bytes, records);
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
  const OffloadCounters before = rig.offloader->counters();
  rig.step(1, 1);
  const OffloadCounters moved = rig.offloader->counters() - before;
  const uint64_t streamed = (rig.space.chunk_count() - plan.host_record_slots) * kRecordTileBytes;
  EXPECT_EQ(moved.record_read_bytes, streamed);
  EXPECT_EQ(moved.record_write_bytes, streamed);
}

TEST(Offloader, CarriesItsStateToAnotherPlacementAndChunkSize) {
  Rig first({Placement::nvme, Placement::nvme});
  first.step(1, 1);
  std::vector<std::byte> records;
  first.offloader->export_records(
      [&](std::span<const std::byte> tiles) { records.insert(records.end(), tiles.begin(), tiles.end()); });
  EXPECT_EQ(records.size(), first.offloader->record_tile_count() * kRecordTileBytes);

  Case other{Placement::none, Placement::none};
  other.chunk_elements = 8 * kTileElements;
  other.tight = false;
  other.strict = false;
  Rig second(other);
  size_t at = 0;
  second.offloader->import_records([&](std::span<std::byte> tiles) {
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
  rig.offloader->end_micro_batch();
  toy::run_micro_batch(*rig.offloader, rig.specs, 1, "block1");
  const std::vector<TensorId> bias = {TensorId{3}};
  { const Lease lease(*rig.offloader, "only/forward", bias, UseKind::forward); }
  rig.offloader->end_micro_batch();
  const std::vector<AdamSettings> groups = toy::groups();
  rig.offloader->update({groups, 2, 0});
  rig.offloader->begin_evaluation();
  { const Lease lease(*rig.offloader, "look/inference", bias, UseKind::inference); }
  rig.offloader->end_evaluation();
  // A step that is given up in the middle of its first micro-batch: one tensor complete, one not.
  rig.offloader->begin_step();
  const std::vector<TensorId> both = {TensorId{0}, TensorId{1}};
  { const Lease lease(*rig.offloader, "mb0/both/forward", both, UseKind::forward); }
  { const Lease lease(*rig.offloader, "mb0/both/backward", both, UseKind::backward); }
  { const Lease lease(*rig.offloader, "only/forward", bias, UseKind::forward); }
  rig.offloader->abandon_step();
  const TensorStates& states = rig.offloader->states();
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
    Rig rig({placement, placement}, 1);
    for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
    const std::vector<AdamSettings> groups = toy::groups();
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
    const std::vector<AdamSettings> groups = toy::groups();
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
}  // namespace terrace
