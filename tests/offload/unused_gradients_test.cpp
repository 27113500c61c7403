// Tensors without a gradient that an update leaves out: neither decay nor moments change them, their steps do
// not count, chunks of nothing else are neither read nor written, and all that survives a resume.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/offload/commits/pinned_commit.h>

#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/expect_error.h"

namespace terrace::unused_gradients_test {
namespace {

std::vector<NamedCase> settings() {
  Case base;
  base.unused = UnusedGradients::skip;
  base.tight = false;  // steps differ
  NamedCases list(base);
  const auto large = [](Case& c) { c.chunk_elements = 3 * kTileElements; };
  using enum Placement;
  list.add("device", none, none);
  list.add("states_on_device", nvme, none, large);
  list.add("host", cpu, cpu);
  list.add("host_large_chunks", cpu, cpu, [](Case& c) { c.chunk_elements = 16 * kTileElements; });
  list.add("parameters_on_device", none, nvme, large);
  list.add("nvme", nvme, nvme, large);
  list.add("nvme_spilled", nvme, nvme, [](Case& c) { c.spills = true; });
  list.add("codes", nvme, nvme, [](Case& c) { c.layout = kCoded; });
  list.add("compact", nvme, nvme, [](Case& c) { c.layout = kCompact, c.chunk_elements = 3 * kTileElements; });
  list.add("accumulated", cpu, nvme, [](Case& c) { c.accumulation = 3; });
  list.add("accumulated_on_device", cpu, none, [](Case& c) { c.accumulation = 3; });
  list.add("next_forward", nvme, nvme,
           [](Case& c) { c.mode = UpdateMode::next_forward, c.cached_quarters = 1; });
  list.add("next_forward_on_device", none, cpu, [](Case& c) { c.mode = UpdateMode::next_forward; });
  list.add("during_backward", cpu, nvme,
           [](Case& c) { c.mode = UpdateMode::during_backward, c.chunk_elements = 3 * kTileElements; });
  list.add("handed_over", cpu, nvme, [](Case& c) { c.gradients = GradientOrigin::handed_over; });
  list.add("device_updates_half", cpu, cpu,
           [](Case& c) { c.processor_share = 0.5, c.chunk_elements = 3 * kTileElements; });
  return list.take();
}

class UnusedGradientsTest : public ::testing::TestWithParam<NamedCase> {};

TEST_P(UnusedGradientsTest, AreLeftOut) {
  Rig rig(GetParam().c);
  Reference reference(rig.specs, rig.accumulation);
  reference.keep_moments_as(rig.options.record_layout);
  reference.skip_unused();
  uint64_t step = 1;
  for (const char* skip : {"", "block0", "block1", "block0", ""}) {
    // The global step has no meaning here.
    rig.step(100, rig.accumulation, skip);
    reference.step(step++, skip);
  }
  rig.offloader->finish_update();
  expect_same_as_reference(rig, reference);
}

INSTANTIATE_TEST_SUITE_P(Placements, UnusedGradientsTest, ::testing::ValuesIn(settings()),
                         NamedCases::name_of);

TEST(UnusedGradients, MoveNoBytesOfWhatIsLeftOut) {
  Case c{Placement::nvme, Placement::nvme};
  c.unused = UnusedGradients::skip;
  c.tight = false;
  c.cached_parameters = 0;
  Rig rig(c);
  rig.step(1);
  const OffloadReport& report = rig.offloader->report();
  const OffloadCounters before = report.counters();
  rig.step(2, 1, "block0");  // bias0 and weight0
  const OffloadCounters after = report.counters();
  uint64_t record_bytes = 0, parameter_bytes = 0;
  for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk) {
    bool is_used = false;
    for (const TensorId tensor : rig.space.tensors_of(ChunkId{chunk}))
      is_used |= tensor != TensorId{1} && tensor != TensorId{2};
    record_bytes += is_used ? rig.offloader->plan().record_slot_bytes : 0;
    parameter_bytes += is_used ? rig.space.param_bytes(ChunkId{chunk}) : 0;
  }
  ASSERT_LT(record_bytes, rig.space.chunk_count() * rig.offloader->plan().record_slot_bytes);
  EXPECT_EQ(after.record_read_bytes - before.record_read_bytes, record_bytes);
  EXPECT_EQ(after.record_write_bytes - before.record_write_bytes, record_bytes);
  EXPECT_EQ(after.param_write_bytes - before.param_write_bytes, parameter_bytes);
}

TEST(UnusedGradients, CountTheirStepsAcrossAResume) {
  ScratchFolder folder;
  CommitCase c;
  c.unused = UnusedGradients::skip;
  c.tight = false;
  Reference reference(toy_tensors(c), 1);
  reference.skip_unused();
  {
    CommitRig rig(c, folder.path());
    rig.step(1, 1, "block1");
    rig.step(2);
    rig.offloader->commits().begin(step_info(2));
    rig.offloader->commits().finish();
    rig.step(3);  // which the resume does not know
  }
  reference.step(1, "block1");
  reference.step(2);
  c.start = TierStart::resume;
  {
    CommitCase other = c;
    other.unused = UnusedGradients::zero;
    testing::expect_error(ErrorKind::config, {"cannot go on from commit 1", "count their own steps", "skip"},
                          [&] { const CommitRig rig(other, folder.path()); });
  }
  CommitRig rig(c, folder.path());
  const std::span<const uint64_t> steps = rig.offloader->state().tensor_steps();
  EXPECT_EQ(std::vector(steps.begin(), steps.end()), (std::vector<uint64_t>{2, 2, 2, 1, 1, 2, 2}));
  EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(2));
  rig.step(3);
  reference.step(3);
  for (uint32_t t = 0; t < rig.specs.size(); ++t) EXPECT_EQ(rig.parameters(t), reference.parameters(t)) << t;
}

TEST(UnusedGradients, GiveTheirStepsAwayAndTakeThemBack) {
  Case c;
  c.unused = UnusedGradients::skip;
  c.tight = false;
  Rig one(c), other(c);
  one.step(1, 1, "block1");
  const std::vector<std::byte> records = one.records();
  size_t at = 0;
  other.offloader->state().import_records([&](std::span<std::byte> tiles) {
    std::memcpy(tiles.data(), records.data() + at, tiles.size());
    at += tiles.size();
  });
  EXPECT_EQ(other.offloader->state().tensor_steps()[0], 0u);
  other.offloader->state().set_tensor_steps(one.offloader->state().tensor_steps());
  for (Rig* rig : {&one, &other}) rig->step(2);
  EXPECT_EQ(one.records(), other.records());
  testing::expect_error(ErrorKind::misuse, {"1 counts", "7 are kept"}, [&] {
    const uint64_t count = 1;
    one.offloader->state().set_tensor_steps({&count, 1});
  });
}

// A step without an update leaves nothing behind: an infinite gradient, an abandoned one, a lease that did
// not fit.
TEST(UnusedGradients, GoOnAfterStepsWithoutAnUpdate) {
  for (const Placement states : {Placement::none, Placement::cpu}) {
    Case c{Placement::cpu, states};
    c.unused = UnusedGradients::skip;
    c.with_frozen = true;
    Rig rig(c);
    Reference reference(rig.specs, 1);
    reference.skip_unused();
    const std::vector<OptimizerSettings> groups = toy::groups();
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0, "", std::numeric_limits<float>::infinity());
    rig.offloader->end_micro_batch();
    EXPECT_FALSE(rig.offloader->update({groups, 1}).applied);
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->abandon_step();
    rig.offloader->begin_step();
    std::vector<TensorId> all;
    for (uint32_t t = 0; t < rig.specs.size(); ++t) all.push_back(TensorId{t});
    testing::expect_error(ErrorKind::capacity, {"no device memory is left"},
                          [&] { rig.offloader->begin_use("all/backward", all, UseKind::backward); });
    rig.offloader->end_micro_batch();  // of nothing
    EXPECT_TRUE(rig.offloader->update({groups, 1}).applied);
    for (uint64_t step = 1; step <= 2; ++step) {
      rig.step(step);
      reference.step(step);
    }
    expect_same_as_reference(rig, reference);
    const std::span<const uint64_t> steps = rig.offloader->state().tensor_steps();
    EXPECT_EQ(std::vector(steps.begin(), steps.end()), (std::vector<uint64_t>{2, 2, 2, 2, 2, 0, 2, 2}));
  }
}

TEST(UnusedGradients, AreThoseOfTheCommitWhateverFollowsIt) {
  for (const UpdateMode mode : {UpdateMode::after_backward, UpdateMode::next_forward}) {
    ScratchFolder folder;
    CommitCase c;
    c.unused = UnusedGradients::skip;
    c.tight = false;
    c.mode = mode;
    {
      CommitRig rig(c, folder.path());
      rig.step(1, 1, "block1");
      rig.offloader->commits().begin(step_info(1));
      rig.step(2);
      rig.offloader->commits().finish();
      const std::unique_ptr<PinnedCommit> pinned = rig.offloader->commits().pin();
      const std::span<const uint64_t> steps = pinned->tensor_steps();
      EXPECT_EQ(std::vector(steps.begin(), steps.end()), (std::vector<uint64_t>{1, 1, 1, 0, 0, 1, 1}));
    }
    c.start = TierStart::resume;
    CommitRig rig(c, folder.path());
    EXPECT_EQ(rig.offloader->state().tensor_steps()[3], 0u);
  }
}

}  // namespace
}  // namespace terrace::unused_gradients_test
