// Leases inside of leases, ended in any order: tensors stay readable as long as one names them, numbers do
// not change, and what cannot be is an error that changes nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/expect_error.h"

namespace terrace::nested_leases_test {
namespace {

std::vector<NamedCase> settings() {
  Case base;
  base.nested = true;
  NamedCases list(base);
  using enum Placement;
  list.add("device", none, none);
  list.add("host", cpu, cpu);
  list.add("host_not_announced", cpu, cpu, [](Case& c) { c.announced = false, c.tight = false; });
  list.add("nvme_spilled", nvme, nvme,
           [](Case& c) { c.spills = true, c.chunk_elements = 3 * kTileElements; });
  list.add("nvme_accumulated", nvme, nvme, [](Case& c) { c.accumulation = 3; });
  list.add("layer_major", nvme, cpu, [](Case& c) { c.accumulation = 3, c.layer_major = true; });
  list.add("next_forward", nvme, nvme,
           [](Case& c) { c.mode = UpdateMode::next_forward, c.cached_quarters = 1; });
  // Chunks land while a lease around them still reads the first tensor.
  list.add("during_backward", cpu, nvme,
           [](Case& c) { c.mode = UpdateMode::during_backward, c.chunk_elements = 16 * kTileElements; });
  list.add("frozen_beside", cpu, cpu, [](Case& c) { c.with_frozen = true; });
  return list.take();
}

class NestedLeases : public ::testing::TestWithParam<NamedCase> {};

TEST_P(NestedLeases, TrainAsPlainVectorsDo) {
  Rig rig(GetParam().c);
  expect_to_train(rig, 4);
}

INSTANTIATE_TEST_SUITE_P(Placements, NestedLeases, ::testing::ValuesIn(settings()), NamedCases::name_of);

Case roomy() {
  Case c;
  c.tight = false;
  return c;
}

TEST(NestedLeases, EndInAnyOrder) {
  Rig rig(roomy());
  Offloader& offloader = *rig.offloader;
  const std::vector<TensorId> first = {TensorId{1}, TensorId{2}}, second = {TensorId{2}, TensorId{3}};
  offloader.begin_step();
  const uint64_t one = offloader.begin_lease("one/forward", first, UseKind::forward);
  const uint64_t other = offloader.begin_lease("other/forward", second, UseKind::forward);
  offloader.end_lease(one);
  testing::expect_error(ErrorKind::misuse, {"other/forward holds its lease"},
                        [&] { offloader.parameter(TensorId{1}); });
  const auto* const shared = reinterpret_cast<const Bf16*>(offloader.parameter(TensorId{2}));
  EXPECT_EQ(shared[5].bits, to_bf16(toy::initial_value(2, 5)).bits);
  testing::expect_error(ErrorKind::misuse, {"it is not open"}, [&] { offloader.end_lease(one); });
  offloader.end_lease(other);
  offloader.abandon_step();
}

TEST(NestedLeases, GiveAddressesThatNoUseChanges) {
  Rig rig(roomy());
  Offloader& offloader = *rig.offloader;
  const std::vector<TensorId> tensors = {TensorId{2}};
  const std::byte* const parameter = offloader.parameter_address(TensorId{2});
  const std::byte* const gradient = offloader.gradient_address(TensorId{2});
  offloader.begin_step();
  offloader.begin_use("one/backward", tensors, UseKind::backward);
  EXPECT_EQ(offloader.parameter(TensorId{2}), parameter);
  EXPECT_EQ(offloader.gradient(TensorId{2}).data, gradient);
  EXPECT_EQ(std::count(gradient, gradient + 100 * 301 * sizeof(Bf16), std::byte{0}), 100 * 301 * 2);
  offloader.end_use();
  offloader.abandon_step();
}

TEST(NestedLeases, RefuseASecondWriterOfAGradient) {
  Rig rig(roomy());
  Offloader& offloader = *rig.offloader;
  const std::vector<TensorId> tensors = {TensorId{0}};  // which is used twice in backward
  offloader.begin_step();
  {
    const Lease lease(offloader, "one/backward", tensors, UseKind::backward);
    testing::expect_error(ErrorKind::misuse, {"another lease that goes backward writes its gradient"},
                          [&] { offloader.begin_use("other/backward", tensors, UseKind::backward); });
    const Lease reads(offloader, "other/forward", tensors, UseKind::forward);
  }
  { const Lease lease(offloader, "other/backward", tensors, UseKind::backward); }
  testing::expect_error(ErrorKind::misuse, {"its gradient is complete in this micro-batch"},
                        [&] { offloader.begin_use("more/backward", tensors, UseKind::backward); });
  offloader.abandon_step();
}

TEST(NestedLeases, ReadWhatHasItsGradientUnlessThatTookItsPlace) {
  const std::vector<TensorId> tensors = {TensorId{4}};
  for (const UpdateMode mode : {UpdateMode::after_backward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::none, Placement::cpu}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(mode), name_of(parameters)));
      Case c = roomy();
      c.parameters = parameters;
      c.mode = mode;
      c.chunk_elements = kTileElements;
      Rig rig(c);
      Offloader& offloader = *rig.offloader;
      const std::vector<OptimizerSettings> groups = toy::groups();
      offloader.begin_step();
      offloader.announce_update({groups, 1});
      { const Lease lease(offloader, "one/backward", tensors, UseKind::backward); }
      {
        const Lease beside(offloader, "two/backward", std::vector<TensorId>{TensorId{3}}, UseKind::backward);
      }
      const auto read = [&] { const Lease again(offloader, "again/forward", tensors, UseKind::forward); };
      if (parameters == Placement::cpu) {
        testing::expect_error(ErrorKind::misuse, {"has taken the place of its parameters"}, read);
      } else if (mode == UpdateMode::during_backward) {
        testing::expect_error(ErrorKind::misuse, {"its update has begun"}, read);
      } else {
        read();
      }
      offloader.end_micro_batch();
      EXPECT_TRUE(offloader.update({groups, 1}).applied);
    }
  }
}

// A lease that finds no room leaves nothing behind.
TEST(NestedLeases, GoOnAfterOneThatDidNotFit) {
  Case c;  // the device has the least that the announced step needs
  Rig rig(c);
  Reference reference(rig.specs, 1);
  rig.offloader->begin_step();
  std::vector<TensorId> all;
  for (uint32_t t = 0; t < rig.specs.size(); ++t) all.push_back(TensorId{t});
  testing::expect_error(ErrorKind::capacity, {"no device memory is left"},
                        [&] { rig.offloader->begin_use("all/backward", all, UseKind::backward); });
  rig.offloader->abandon_step();
  for (uint64_t step = 1; step <= 2; ++step) {
    rig.step(step);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

}  // namespace
}  // namespace terrace::nested_leases_test
