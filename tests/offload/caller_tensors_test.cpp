// Tensors whose parameters lie in memory of the program: the numbers of plain vectors beside managed ones in
// every placement and mode, no slot and no byte of parameters on any tier, and a training of nothing else,
// which needs no device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/device/simulated_device.h>

#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/expect_error.h"
#include "support/offloaders.h"

namespace terrace::caller_tensors_test {
namespace {

std::vector<NamedCase> settings() {
  Case base;
  base.gradients = GradientOrigin::handed_over;
  base.callers = true;
  NamedCases list(base);
  using enum Placement;
  list.add("host", cpu, cpu);
  list.add("fp32", cpu, cpu, [](Case& c) { c.type = DataType::fp32, c.chunk_elements = 3 * kTileElements; });
  list.add("parameters_on_device", none, cpu, [](Case& c) { c.chunk_elements = 16 * kTileElements; });
  list.add("nvme", nvme, nvme, [](Case& c) { c.cached_quarters = 1; });
  list.add("nvme_spilled", nvme, nvme,
           [](Case& c) { c.spills = true, c.chunk_elements = 3 * kTileElements; });
  list.add("accumulated", cpu, nvme, [](Case& c) { c.accumulation = 3; });
  list.add("layer_major", nvme, cpu, [](Case& c) { c.accumulation = 3, c.layer_major = true; });
  list.add("next_forward", nvme, nvme,
           [](Case& c) { c.mode = UpdateMode::next_forward, c.cached_quarters = 1; });
  list.add("next_forward_on_device", none, nvme,
           [](Case& c) { c.mode = UpdateMode::next_forward, c.holds_gradients = true, c.tight = false; });
  list.add("during_backward", cpu, nvme, [](Case& c) { c.mode = UpdateMode::during_backward; });
  list.add("frozen_beside", nvme, cpu, [](Case& c) { c.with_frozen = true; });
  list.add("device_updates_others", cpu, cpu, [](Case& c) { c.processor_share = 0; });
  list.add("skipping", cpu, nvme, [](Case& c) { c.unused = UnusedGradients::skip; });
  const auto borrow = [](Case& c) { c.gradients = GradientOrigin::borrowed; };
  list.add("borrowed", cpu, cpu, borrow);
  list.add("borrowed_fp32", cpu, nvme,
           [&](Case& c) { borrow(c), c.type = DataType::fp32, c.chunk_elements = 3 * kTileElements; });
  list.add("borrowed_frozen_beside", nvme, nvme,
           [&](Case& c) { borrow(c), c.with_frozen = true, c.cached_quarters = 1; });
  list.add("borrowed_during_backward", cpu, nvme,
           [&](Case& c) { borrow(c), c.mode = UpdateMode::during_backward; });
  list.add("borrowed_skipping", nvme, cpu, [&](Case& c) { borrow(c), c.unused = UnusedGradients::skip; });
  const auto keep_no_masters = [](Case& c) {
    c.type = DataType::fp32;
    c.layout.master = MasterForm::parameter;
  };
  list.add("masters_in_parameters", cpu, cpu, keep_no_masters);
  list.add("masters_in_parameters_nvme", nvme, nvme, [&](Case& c) {
    keep_no_masters(c), c.accumulation = 3, c.chunk_elements = 3 * kTileElements, c.cached_quarters = 1;
  });
  list.add("masters_in_parameters_next_forward", cpu, nvme,
           [&](Case& c) { keep_no_masters(c), c.mode = UpdateMode::next_forward; });
  list.add("masters_in_parameters_skipping", none, nvme, [&](Case& c) {
    keep_no_masters(c), c.unused = UnusedGradients::skip, c.mode = UpdateMode::during_backward;
  });
  list.add("borrowed_masters_in_parameters", cpu, nvme, [&](Case& c) { borrow(c), keep_no_masters(c); });
  return list.take();
}

class CallerTensorsTest : public ::testing::TestWithParam<NamedCase> {};

TEST_P(CallerTensorsTest, TrainAsPlainVectorsDo) {
  Rig rig(GetParam().c);
  expect_to_train(rig, 4);
}

INSTANTIATE_TEST_SUITE_P(Placements, CallerTensorsTest, ::testing::ValuesIn(settings()), NamedCases::name_of);

TEST(CallerTensors, HaveNoParametersOnAnyTier) {
  Case managed{Placement::nvme, Placement::nvme}, callers = managed;
  managed.gradients = callers.gradients = GradientOrigin::handed_over;
  callers.callers = true;
  Rig with(callers), without(managed);
  const MemoryPlan& plan = with.offloader->plan();
  EXPECT_GT(plan.caller_chunks, 0u);
  EXPECT_EQ(plan.parameter_chunks + plan.caller_chunks, with.space.chunk_count());
  EXPECT_EQ(plan.parameter_file_bytes,
            plan.parameter_chunks * uint64_t{kTileElements} * bytes_of(DataType::bf16));
  EXPECT_LT(plan.parameter_file_bytes, without.offloader->plan().parameter_file_bytes);
}

TEST(CallerTensors, TakeNoMemoryForBorrowedGradientsAndMastersInParameters) {
  Case c{Placement::cpu, Placement::cpu};
  c.callers = true;
  c.gradients = GradientOrigin::borrowed;
  c.type = DataType::fp32;
  c.layout.master = MasterForm::parameter;
  Rig rig(c);
  const MemoryPlan& plan = rig.offloader->plan();
  EXPECT_EQ(plan.host_gradient_slots, 0u);
  EXPECT_EQ(plan.host_param_slots, 0u);
  EXPECT_EQ(plan.landing_slots, 1u);
  EXPECT_EQ(plan.host_record_slots, plan.caller_chunks);
  EXPECT_EQ(plan.record_slot_bytes, kTileElements * 2 * sizeof(float));
}

// With masters in the parameters, what the program writes to a parameter counts.
TEST(CallerTensors, AreTheMastersThatTheProgramMayChange) {
  Case c{Placement::cpu, Placement::cpu};
  c.callers = true;
  c.gradients = GradientOrigin::handed_over;
  c.type = DataType::fp32;
  c.layout.master = MasterForm::parameter;
  Rig changed(c), loaded(c);
  const float value = 0.75f;
  std::memcpy(changed.specs[3].memory, &value, sizeof(value));
  loaded.offloader->state().write_values(TensorId{3}, ValueKind::master, 0, {&value, 1});
  changed.step(1);
  loaded.step(1);
  EXPECT_EQ(changed.state(), loaded.state());
}

// The program may have taken the memory of borrowed gradients back: here it cannot be read.
TEST(CallerTensors, AreNotAskedForTheirGradientsWhereAStepIsGivenUp) {
  Case c{Placement::cpu, Placement::cpu};
  c.callers = true;
  c.gradients = GradientOrigin::borrowed;
  Rig rig(c);
  rig.step(1);
  const std::vector<std::byte> before = rig.state();
  rig.offloader->begin_step();
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    auto* const nowhere = reinterpret_cast<const std::byte*>(uint64_t{4096} * (t + 1));
    rig.offloader->hand_over_gradient(TensorId{t},
                                      {nowhere, rig.specs[t].element_count() * bytes_of(rig.specs[t].type)});
  }
  rig.offloader->abandon_step();
  EXPECT_EQ(rig.state(), before);
  rig.step(2);
  EXPECT_NE(rig.state(), before);
}

// A gradient that was borrowed in an earlier step is not read again.
TEST(CallerTensors, HaveZeroGradientsInStepsThatHandOverNone) {
  Case c{Placement::cpu, Placement::cpu};
  c.callers = true;
  c.gradients = GradientOrigin::handed_over;
  Rig copied(c);
  c.gradients = GradientOrigin::borrowed;
  Rig borrowed(c);
  for (Rig* const rig : {&copied, &borrowed}) {
    rig->step(1);
    rig->step(2, 1, "block0");  // bias0 and weight0 have no gradient
  }
  for (uint32_t t = 0; t < copied.specs.size(); ++t)
    EXPECT_EQ(borrowed.parameters(t), copied.parameters(t)) << t;
}

// What a drop-in optimizer is.
TEST(CallerTensors, NeedNoDeviceAtAll) {
  for (const bool lends : {false, true}) {
    const Placement states = lends ? Placement::nvme : Placement::cpu;
    ScratchFolder folder;
    std::vector<TensorSpec> specs = toy::tensors(DataType::fp32, false, 1);
    std::vector<std::vector<float>> memory;
    for (TensorSpec& spec : specs) {
      memory.emplace_back(spec.element_count());
      spec.home = TensorHome::caller;
      spec.memory = reinterpret_cast<std::byte*>(memory.back().data());
    }
    const FlatSpace space(specs, 2 * kTileElements);
    OffloadOptions options;
    options.states = states;
    options.parameters = Placement::cpu;
    options.state_paths = {{folder.path()}};
    options.gradients = lends ? GradientOrigin::borrowed : GradientOrigin::handed_over;
    if (lends) options.record_layout.master = MasterForm::parameter;
    options.io.kind = io::EngineKind::threads;
    options.lock_host_memory = false;
    testing::take_least_budgets(options, space, {});
    EXPECT_EQ(options.device_budget_bytes, 0u);
    SimulatedDevice device({});
    Workers workers(2);
    MemoryLog log;
    Offloader offloader(space, options, {}, device, workers, log);
    toy::initialise(offloader);
    Reference reference(specs, 1);
    const std::vector<OptimizerSettings> groups = toy::groups();
    for (uint64_t step = 1; step <= 3; ++step) {
      reference.step(step);
      offloader.begin_step();
      std::vector<std::vector<float>> gradients;
      for (uint32_t t = 0; t < specs.size(); ++t) gradients.push_back(reference.sum(t));
      for (uint32_t t = 0; t < specs.size(); ++t)
        offloader.hand_over_gradient(TensorId{t}, std::as_bytes(std::span(gradients[t])));
      offloader.end_micro_batch();
      EXPECT_TRUE(offloader.update({groups, step}).applied);
    }
    for (uint32_t t = 0; t < specs.size(); ++t) EXPECT_EQ(memory[t], reference.master(t)) << t;
  }
}

TEST(CallerTensors, ComeBackWithACommitAndMayMove) {
  ScratchFolder folder;
  CommitCase c;
  c.gradients = GradientOrigin::handed_over;
  c.callers = true;
  Reference reference(toy_tensors(c), 1);
  {
    CommitRig rig(c, folder.path());
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    rig.offloader->commits().finish();
    rig.step(2);
  }
  reference.step(1);
  c.start = TierStart::resume;
  CommitRig rig(c, folder.path());
  std::vector<std::byte> elsewhere(rig.specs[1].element_count() * bytes_of(DataType::bf16));
  std::memcpy(elsewhere.data(), rig.specs[1].memory, elsewhere.size());
  EXPECT_EQ(std::memcmp(elsewhere.data(), reference.parameters(1).data(), elsewhere.size()), 0);
  rig.offloader->move_caller_tensor(TensorId{1}, elsewhere.data());
  rig.specs[1].memory = elsewhere.data();
  rig.hand_over();
  for (uint64_t step = 2; step <= 3; ++step) {
    rig.step(step);
    reference.step(step);
  }
  for (uint32_t t = 0; t < rig.specs.size(); ++t) EXPECT_EQ(rig.parameters(t), reference.parameters(t)) << t;
}

TEST(CallerTensors, HaveTheirValuesReadAndWritten) {
  Case c;
  c.gradients = GradientOrigin::handed_over;
  c.callers = true;
  Rig rig(c);
  const TensorId tensor{3};  // of one element
  const float value = 0.5f;
  rig.offloader->state().write_values(tensor, ValueKind::parameter, 0, {&value, 1});
  EXPECT_EQ(toy::load(rig.specs[3].memory, 0, DataType::bf16), value);
  float read = 0;
  rig.offloader->state().read_values(tensor, ValueKind::master, 0, {&read, 1});
  EXPECT_EQ(read, value);
  toy::store(rig.specs[3].memory, 0, DataType::bf16, 0.25f);  // as the program may
  rig.offloader->state().read_values(tensor, ValueKind::parameter, 0, {&read, 1});
  EXPECT_EQ(read, 0.25f);
}

TEST(CallerTensors, AreRefusedWhereTheyCannotBe) {
  Case c;
  c.callers = true;
  const auto make = [](const Case& of) { const Rig rig(of); };
  testing::expect_error(ErrorKind::config, {"bias0", "handed_over"}, [&] { make(c); });
  c.gradients = GradientOrigin::handed_over;
  Case other = c;
  other.states = Placement::none;
  testing::expect_error(ErrorKind::config, {"bias0", "cpu or nvme"}, [&] { make(other); });
  other = c;
  other.layout = kCompact;
  testing::expect_error(ErrorKind::config, {"bias0", "keep whole masters"}, [&] { make(other); });
  other = c;
  other.layout.master = MasterForm::parameter;
  testing::expect_error(ErrorKind::config, {"bf16", "keep whole masters"}, [&] { make(other); });
  other.type = DataType::fp32;
  other.layout.moment_count = 0;
  testing::expect_error(ErrorKind::config, {"without moments"}, [&] { make(other); });
  other = c;
  other.gradients = GradientOrigin::borrowed;
  other.accumulation = 2;
  testing::expect_error(ErrorKind::config, {"2 micro-batches"}, [&] { make(other); });
  other.accumulation = 1;
  other.mode = UpdateMode::next_forward;
  testing::expect_error(ErrorKind::config, {"borrowed until the update is over"}, [&] { make(other); });
  other.callers = false;
  testing::expect_error(ErrorKind::config, {"shared", "not the program's"}, [&] { make(other); });
  Rig rig(c);
  const std::vector<TensorId> tensors = {TensorId{1}};
  rig.offloader->begin_step();
  testing::expect_error(ErrorKind::misuse, {"bias0", "read them there"},
                        [&] { rig.offloader->begin_use("one", tensors, UseKind::forward); });
  rig.offloader->abandon_step();
  testing::expect_error(ErrorKind::misuse, {"bias0", "address is null"},
                        [&] { rig.offloader->move_caller_tensor(TensorId{1}, nullptr); });
  testing::expect_error(ErrorKind::misuse, {"shared", "not the program's"}, [&] {
    std::byte somewhere{};
    rig.offloader->move_caller_tensor(TensorId{0}, &somewhere);
  });
}

}  // namespace
}  // namespace terrace::caller_tensors_test
