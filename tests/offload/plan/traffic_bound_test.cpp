// The least bytes of a step, against steps that move them and against each other.
#include <gtest/gtest.h>

#include "offload/commits/commit_rig.h"

namespace terrace::traffic_bound_test {
namespace {

constexpr RecordLayout kCompact = {.master = MasterForm::remainder};
constexpr RecordLayout kCoded = {.master = MasterForm::remainder, .moment_type = MomentType::int8};

struct Step {
  OffloadCounters moved;
  TrafficBound bound;
};

// A step that is none of the first, with the least of budgets, or the least that holds gradients.
Step step_with(Placement parameters, RecordLayout layout, UpdateMode mode = UpdateMode::after_backward,
               bool holds_gradients = false, double processor_share = 1) {
  CommitCase c;
  c.processor_share = processor_share;
  c.holds_gradients = holds_gradients;
  c.parameters = parameters;
  c.layout = layout;
  c.durable = false;
  c.cached_quarters = 0;
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.offloader->set_update_mode(mode);
  rig.step(1);
  rig.step(2);
  const OffloadCounters before = rig.offloader->report().counters();
  rig.step(3);
  return {rig.offloader->report().counters() - before, rig.offloader->report().traffic_bound()};
}

TEST(TrafficBound, IsWhatStepsOfEveryLayoutMove) {
  for (const RecordLayout& layout : {RecordLayout{}, kCompact, kCoded}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      const auto [moved, bound] = step_with(parameters, layout);
      EXPECT_EQ(moved.record_read_bytes, bound.record_read_bytes) << name_of(parameters);
      EXPECT_EQ(moved.record_write_bytes, bound.record_write_bytes) << name_of(parameters);
      EXPECT_EQ(moved.param_write_bytes, bound.param_write_bytes) << name_of(parameters);
      EXPECT_EQ(moved.d2h_bytes, bound.d2h_bytes) << name_of(parameters);
      // Fetches beyond the least are the only reads beyond it.
      EXPECT_GE(moved.param_read_bytes, bound.param_read_bytes) << name_of(parameters);
      if (parameters == Placement::nvme) {
        EXPECT_EQ(moved.param_read_bytes - bound.param_read_bytes, moved.h2d_bytes - bound.h2d_bytes);
      }
    }
  }
}

// Records and gradients come to the device and go, and nothing else does that would not.
TEST(TrafficBound, OfUpdatesOnTheDeviceIsWhatTheyMove) {
  for (const RecordLayout& layout : {RecordLayout{}, kCompact, kCoded}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      const TrafficBound here = step_with(parameters, layout).bound;
      const auto [moved, bound] = step_with(parameters, layout, UpdateMode::after_backward, false, 0);
      EXPECT_EQ(moved.d2h_bytes, bound.d2h_bytes) << name_of(parameters);
      EXPECT_EQ(moved.record_read_bytes, here.record_read_bytes) << name_of(parameters);
      EXPECT_EQ(moved.param_read_bytes - bound.param_read_bytes,
                parameters == Placement::nvme ? moved.h2d_bytes - bound.h2d_bytes : 0);
      const uint64_t records = here.record_read_bytes;
      const uint64_t elements = records / layout.tile_bytes() * kTileElements;
      const uint64_t bytes = elements * sizeof(Bf16);  // of gradients, or of parameters
      const bool is_compact = layout.master == MasterForm::remainder;
      if (parameters == Placement::none) {
        EXPECT_EQ(bound.h2d_bytes, here.h2d_bytes - bytes + records + bytes);
        EXPECT_EQ(bound.d2h_bytes, here.d2h_bytes - (is_compact ? bytes : 0) + records);
      } else {
        EXPECT_EQ(bound.h2d_bytes, here.h2d_bytes + records + bytes + (is_compact ? bytes : 0));
        EXPECT_EQ(bound.d2h_bytes, here.d2h_bytes + records + bytes);
      }
    }
  }
}

// What an update makes in the next forward is not read for it.
TEST(TrafficBound, OfAnUpdateInTheNextForwardLeavesOutOneFetch) {
  for (const RecordLayout& layout : {RecordLayout{}, kCompact}) {
    const auto [moved, bound] = step_with(Placement::nvme, layout, UpdateMode::next_forward, true);
    const TrafficBound after = step_with(Placement::nvme, layout, UpdateMode::after_backward, true).bound;
    EXPECT_EQ(after.param_read_bytes - bound.param_read_bytes, bound.param_write_bytes);
    EXPECT_EQ(moved.param_write_bytes, bound.param_write_bytes);
    const bool in_memory = layout == RecordLayout{};  // where gradients take over
    EXPECT_EQ(bound.param_write_bytes == 0, in_memory);
    EXPECT_EQ(moved.param_read_bytes - bound.param_read_bytes,
              in_memory ? 0 : moved.h2d_bytes - bound.h2d_bytes);
  }
}

// Four bytes of states instead of twelve: eight of a parameter and step on nvme, and no byte beside them.
TEST(TrafficBound, OfCodesInCompactStateIsEightBytesOfAParameter) {
  const TrafficBound plain = step_with(Placement::cpu, RecordLayout{}).bound;
  const TrafficBound coded = step_with(Placement::cpu, kCoded).bound;
  EXPECT_EQ(coded.record_read_bytes * 12, plain.record_read_bytes * 4);
  EXPECT_EQ(coded.record_write_bytes * 12, plain.record_write_bytes * 4);
  EXPECT_EQ(kCoded.tile_bytes(), 4 * kTileElements);
}

// Ten bytes of states instead of twelve, and once more the parameters, where they are not in host memory.
TEST(TrafficBound, OfCompactStateHasTheParametersOfBeforeTheUpdate) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    const TrafficBound plain = step_with(parameters, RecordLayout{}).bound;
    const TrafficBound compact = step_with(parameters, kCompact).bound;
    EXPECT_EQ(compact.record_read_bytes * 12, plain.record_read_bytes * 10);
    EXPECT_EQ(compact.param_read_bytes - plain.param_read_bytes, plain.param_write_bytes);
    EXPECT_EQ(compact.d2h_bytes - plain.d2h_bytes, parameters == Placement::none ? plain.d2h_bytes : 0);
  }
}

}  // namespace
}  // namespace terrace::traffic_bound_test
