// Gradients that the program makes itself and hands over: the numbers of plain vectors wherever states and
// parameters are, no slot of the device and no byte of the link where states are below it, and a hand-over
// out of order as an error that changes nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/expect_error.h"

namespace terrace::handed_over_test {
namespace {

std::vector<NamedCase> settings() {
  Case base;
  base.gradients = GradientOrigin::handed_over;
  NamedCases list(base);
  using enum Placement;
  list.add("device", none, none);
  list.add("states_on_device", nvme, none);
  list.add("host", cpu, cpu);
  list.add("host_parameters_on_device", none, cpu);
  list.add("nvme_spilled", nvme, nvme, [](Case& c) { c.spills = true; });
  list.add("nvme_some_held", nvme, nvme, [](Case& c) { c.cached_quarters = 1; });
  list.add("device_accumulated", none, none, [](Case& c) { c.accumulation = 3; });
  list.add("states_on_device_accumulated", cpu, none, [](Case& c) { c.accumulation = 3; });
  list.add("host_accumulated", cpu, cpu, [](Case& c) { c.accumulation = 3, c.type = DataType::fp32; });
  list.add("nvme_spilled_accumulated", nvme, nvme, [](Case& c) { c.accumulation = 3, c.spills = true; });
  list.add("spilled_layer_major", cpu, nvme, [](Case& c) {
    c.accumulation = 3, c.layer_major = true, c.spills = true, c.chunk_elements = 3 * kTileElements;
  });
  list.add("next_forward", nvme, nvme,
           [](Case& c) { c.mode = UpdateMode::next_forward, c.cached_quarters = 1; });
  list.add("during_backward", cpu, nvme, [](Case& c) { c.mode = UpdateMode::during_backward; });
  list.add("during_backward_nested", nvme, nvme, [](Case& c) {
    c.mode = UpdateMode::during_backward, c.nested = true, c.chunk_elements = 3 * kTileElements;
  });
  list.add("frozen_beside", cpu, cpu,
           [](Case& c) { c.with_frozen = true, c.chunk_elements = 5 * kTileElements; });
  list.add("compact", nvme, nvme, [](Case& c) { c.layout = kCompact; });
  list.add("codes", nvme, nvme, [](Case& c) { c.layout = kCoded; });
  list.add("compact_codes", cpu, cpu, [](Case& c) { c.layout = kCompactCoded; });
  list.add("large_chunks", cpu, cpu, [](Case& c) { c.chunk_elements = 16 * kTileElements; });
  return list.take();
}

class HandedOver : public ::testing::TestWithParam<NamedCase> {};

TEST_P(HandedOver, TrainsAsPlainVectorsDo) {
  Rig rig(GetParam().c);
  expect_to_train(rig, 4);
}

TEST_P(HandedOver, LeavesZeroWhereAMicroBatchHasNoGradient) {
  if (GetParam().c.layer_major) return;  // layer_major_test leaves out uses
  Rig rig(GetParam().c);
  Reference reference(rig.specs, rig.accumulation);
  reference.keep_moments_as(rig.options.record_layout);
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::string skip = step == 2 ? "block1" : step == 3 ? "block0" : "";
    rig.step(step, rig.accumulation, skip);
    reference.step(step, skip);
  }
  rig.offloader->finish_update();
  expect_same_as_reference(rig, reference);
}

TEST_P(HandedOver, GoesOnAfterAnAbandonedStepAndAfterInfiniteGradients) {
  if (GetParam().c.mode == UpdateMode::during_backward) return;  // may be applied in part
  Rig rig(GetParam().c);
  Reference reference(rig.specs, rig.accumulation);
  reference.keep_moments_as(rig.options.record_layout);
  rig.step(1);
  reference.step(1);
  rig.offloader->begin_step();
  if (!rig.layer_major) toy::run_micro_batch(*rig.access, rig.specs, 0, "block1");
  rig.offloader->abandon_step();
  rig.hand_over();
  if (!rig.layer_major) {
    rig.offloader->begin_step();
    for (uint32_t m = 0; m < rig.accumulation; ++m) {
      toy::run_micro_batch(*rig.access, rig.specs, m, "block0", std::numeric_limits<float>::infinity());
      rig.handing->end_micro_batch();
      rig.offloader->end_micro_batch();
    }
    const std::vector<OptimizerSettings> groups = toy::groups();
    EXPECT_FALSE(rig.offloader->update({groups, 2}).applied);
  }
  rig.step(2);
  reference.step(2);
  rig.offloader->finish_update();
  expect_same_as_reference(rig, reference);
}

INSTANTIATE_TEST_SUITE_P(Placements, HandedOver, ::testing::ValuesIn(settings()), NamedCases::name_of);

TEST(HandOver, TakesNoSlotOfTheDeviceAndNoByteOfItsLink) {
  Case leased, handed;
  leased.chunk_elements = handed.chunk_elements = 3 * kTileElements;
  handed.gradients = GradientOrigin::handed_over;
  Rig with(leased), without(handed);
  EXPECT_LT(without.offloader->plan().device_slots, with.offloader->plan().device_slots);
  for (uint64_t step = 1; step <= 2; ++step) without.step(step);
  const OffloadReport& report = without.offloader->report();
  const uint64_t before = report.counters().h2d_bytes;
  without.step(3);
  EXPECT_EQ(report.counters().d2h_bytes, 0u);
  EXPECT_EQ(report.counters().h2d_bytes - before, report.traffic_bound().h2d_bytes);
}

TEST(HandOver, CrossesTheLinkOnceWhereStatesAreOnTheDevice) {
  Case c{Placement::none, Placement::none};
  c.gradients = GradientOrigin::handed_over;
  Rig rig(c);
  uint64_t bytes = 0;
  for (const TensorSpec& spec : rig.specs) bytes += spec.element_count() * bytes_of(spec.type);
  const uint64_t before = rig.offloader->report().counters().h2d_bytes;
  rig.step(1);
  EXPECT_EQ(rig.offloader->report().counters().h2d_bytes - before, bytes);
  EXPECT_EQ(rig.offloader->report().traffic_bound().h2d_bytes, bytes);
}

TEST(HandOver, IsRefusedWhereItCannotBe) {
  Case c;
  c.gradients = GradientOrigin::handed_over;
  Rig rig(c);
  Reference reference(rig.specs, 1);
  const TensorSpec& spec = rig.specs[1];
  const std::vector<std::byte> gradient(spec.element_count() * bytes_of(spec.type));
  const auto hand_over = [&](uint32_t tensor, std::span<const std::byte> bytes) {
    rig.offloader->hand_over_gradient(TensorId{tensor}, bytes);
  };
  testing::expect_error(ErrorKind::misuse, {"neither a step nor an evaluation is open"},
                        [&] { hand_over(1, gradient); });
  rig.offloader->begin_step();
  testing::expect_error(ErrorKind::misuse, {"tensor 1000", "there are 7"},
                        [&] { hand_over(1000, gradient); });
  testing::expect_error(ErrorKind::misuse, {"138 bytes were handed over for 140 of bf16"},
                        [&] { hand_over(1, std::span(gradient).first(138)); });
  const std::vector<TensorId> leased = {TensorId{1}};
  {
    const Lease lease(*rig.offloader, "one/backward", leased, UseKind::backward);
    testing::expect_error(ErrorKind::misuse, {"are handed over"}, [&] { lease.gradient(TensorId{1}); });
    hand_over(1, gradient);  // its lease goes on
    EXPECT_NE(lease.parameter<Bf16>(TensorId{1}), nullptr);
  }
  testing::expect_error(ErrorKind::misuse, {"already"}, [&] { hand_over(1, gradient); });
  { const Lease again(*rig.offloader, "one/again", leased, UseKind::forward); }
  rig.offloader->abandon_step();
  rig.step(1);
  reference.step(1);
  expect_same_as_reference(rig, reference);
}

}  // namespace
}  // namespace terrace::handed_over_test
