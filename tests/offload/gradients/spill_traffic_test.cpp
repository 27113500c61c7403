// What a step moves for spilled gradients: each one out and back in the precision in which it is held, once a
// micro-batch, and nothing else.
#include <gtest/gtest.h>

#include "offload/gradients/spill_rig.h"
#include "offload/offloader_rig.h"

namespace terrace::spill_traffic_test {
namespace {

// Of the gradients of spilled chunks, as they are held.
uint64_t spilled_bytes(const CommitRig& rig, const CommitCase& c) {
  const std::vector<bool> spilled = spilled_gradients(rig.space, rig.offloader->plan());
  uint64_t elements = 0;
  for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk)
    elements += spilled[chunk] ? rig.space.chunk(ChunkId{chunk}).elements : 0;
  return elements * bytes_of(c.accumulation > 1 ? c.accumulation_type : c.type);
}

void expect_exact_bytes(CommitCase c) {
  GradientRequests requests;
  c.decorate = requests.decorator();
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  const uint64_t bytes = spilled_bytes(rig, c);
  ASSERT_GT(bytes, 0u);
  rig.step(1);
  rig.step(2);
  rig.offloader->finish_update();
  const OffloadCounters before = rig.offloader->report().counters();
  const GradientRequests::Totals asked = requests.totals();
  rig.step(3);
  rig.offloader->finish_update();
  const OffloadCounters moved = rig.offloader->report().counters() - before;
  // Written in every micro-batch; read by every later one, which adds to it, and by the update.
  EXPECT_EQ(moved.gradient_write_bytes, bytes * c.accumulation);
  EXPECT_EQ(moved.gradient_read_bytes, bytes * c.accumulation);
  EXPECT_EQ(moved.update_gradient_read_bytes, bytes);
  const TrafficBound least = rig.offloader->report().traffic_bound();
  EXPECT_EQ(moved.gradient_write_bytes, least.gradient_write_bytes);
  EXPECT_EQ(moved.gradient_read_bytes, least.gradient_read_bytes);
  // And that is what the disk is asked for.
  EXPECT_EQ(requests.totals().written_bytes - asked.written_bytes, bytes * c.accumulation);
  EXPECT_EQ(requests.totals().read_bytes - asked.read_bytes, bytes * c.accumulation);
}

TEST(SpillTraffic, IsEveryGradientOnceEachWayInItsPrecisionAndTheLeastPossible) {
  for (CommitCase c : spilling_cases()) {
    for (const auto& budget : {spill_all, spill_some}) {
      for (const UpdateMode mode : kUpdateModes) {
        if (!may_run(c, mode)) continue;
        c.host_budget = budget;
        c.mode = mode;
        SCOPED_TRACE(text_of(c));
        expect_exact_bytes(c);
      }
    }
  }
}

TEST(SpillTraffic, OfFp32ParametersIsTwiceThatOfBf16Ones) {
  for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    CommitCase c{.parameters = Placement::nvme, .type = type, .durable = false};
    c.host_budget = spill_all;
    const ScratchFolder folder;
    CommitRig rig(c, folder.path());
    rig.step(1);
    EXPECT_EQ(rig.offloader->report().counters().gradient_write_bytes,
              rig.trainable_elements() * bytes_of(type));
    expect_exact_bytes(c);
  }
}

// --- Gradients of zero ---

// Which use is left out in each micro-batch of a step; a chunk that only it uses has no gradient then.
using Skips = std::vector<std::string>;

struct Walk {
  std::vector<std::vector<std::byte>> states;  // parameters, by step
  std::vector<uint64_t> written_bytes;         // of gradients, by step
};

// With room on the device: left out, an operation keeps gradients of its neighbours open.
Walk walk(const Case& c, const std::vector<Skips>& steps) {
  Rig rig(c);
  const std::vector<OptimizerSettings> groups = toy::groups();
  Walk walk;
  for (uint64_t step = 1; step <= steps.size(); ++step) {
    const uint64_t before = rig.offloader->report().counters().gradient_write_bytes;
    const UpdateSettings settings = {groups, step, 0, 1};
    rig.offloader->begin_step();
    rig.offloader->announce_update(settings);
    for (uint32_t m = 0; m < c.accumulation; ++m) {
      toy::run_micro_batch(*rig.offloader, rig.specs, m, steps[step - 1][m]);
      rig.offloader->end_micro_batch();
    }
    EXPECT_TRUE(rig.offloader->update(settings).applied);
    walk.states.emplace_back();
    for (uint32_t t = 0; t < rig.specs.size(); ++t) {
      const std::vector<std::byte> parameters = rig.parameters(t);
      walk.states.back().insert(walk.states.back().end(), parameters.begin(), parameters.end());
    }
    walk.written_bytes.push_back(rig.offloader->report().counters().gradient_write_bytes - before);
  }
  return walk;
}

TEST(SpillTraffic, IsNothingForAChunkWhoseGradientIsZero) {
  const std::vector<Skips> steps = {{"", "", ""},
                                    {"block1", "", ""},
                                    {"", "block1", ""},
                                    {"", "", "block1"},
                                    {"block1", "block1", ""},
                                    {"", "block1", "block1"},
                                    {"block1", "block1", "block1"},
                                    {"", "", ""}};
  // Chunks of a tile that lie within "weight1", which block1 alone uses, are one; the next has other tensors.
  for (const UpdateMode mode : kUpdateModes) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      Case c{parameters, Placement::nvme, DataType::bf16, 3};
      c.mode = mode;
      c.tight = false;
      c.spills = true;
      const Walk spilled = walk(c, steps);
      const uint64_t one = kTileElements * sizeof(float);
      const uint64_t all = spilled.written_bytes.front();
      EXPECT_EQ(spilled.written_bytes,
                (std::vector<uint64_t>{all, all - one, all - one, all - one, all - 2 * one, all - 2 * one,
                                       all - 3 * one, all}))
          << name_of(mode);
      c.spills = false;
      c.holds_gradients = true;
      EXPECT_EQ(spilled.states, walk(c, steps).states) << name_of(mode);
    }
  }
}

}  // namespace
}  // namespace terrace::spill_traffic_test
