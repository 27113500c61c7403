// Every mode of the update gives the bits of the others, whatever happens between two steps.
#include <terrace/offload/plan/update_mode.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/sanitized.h"

namespace terrace::update_mode_test {
namespace {

constexpr UpdateMode kOtherModes[] = {UpdateMode::next_forward, UpdateMode::during_backward};

class UpdateModes : public ::testing::TestWithParam<Case> {};

TEST_P(UpdateModes, TrainBitForBitLikePlainVectors) {
  const Case& c = GetParam();
  Rig rig(c);
  Reference reference(rig.specs, c.accumulation, c.accumulation_type);
  for (uint64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(rig.step(step, c.accumulation).applied);
    reference.step(step);
    if (step == 2) expect_same_as_reference(rig, reference);
  }
  expect_same_as_reference(rig, reference);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const UpdateMode mode : kOtherModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const Placement states : {Placement::cpu, Placement::nvme}) {
        for (const uint32_t accumulation : {1u, 3u}) {
          for (const bool tight : {true, false}) {
            Case c{parameters, states, DataType::bf16, accumulation};
            c.mode = mode;
            c.tight = c.strict = tight;
            c.chunk_elements = tight ? kTileElements : 4 * kTileElements;
            c.with_frozen = !tight;
            c.engine = tight ? io::EngineKind::threads : io::EngineKind::io_uring;
            list.push_back(c);
            c.type = accumulation == 1 ? DataType::fp32 : DataType::fp16;
            c.accumulation_type = tight ? DataType::fp32 : c.type;
            c.announced = tight;
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
  return fmt::format("{}_{}_{}_{}_{}_{}", name_of(c.mode), name_of(c.parameters), name_of(c.states),
                     name_of(c.type), c.accumulation, c.tight ? "tight" : "roomy");
}

INSTANTIATE_TEST_SUITE_P(All, UpdateModes, ::testing::ValuesIn(testing::thinned(cases())), case_name);

// --- Clipping, loss scaling, what comes between two steps ---

// The values of every tensor after each of some steps.
using History = std::vector<std::vector<std::vector<std::byte>>>;

std::vector<std::vector<std::byte>> values_of(Rig& rig) {
  std::vector<std::vector<std::byte>> values;
  for (uint32_t t = 0; t < rig.specs.size(); ++t) values.push_back(rig.parameters(t));
  return values;
}

History train_clipped(UpdateMode mode, Placement parameters, Placement states) {
  Case c{parameters, states, DataType::fp16, 2};
  c.tight = false;
  c.chunk_elements = kTileElements;
  c.mode = mode;
  Rig rig(c);
  History history;
  for (uint64_t step = 1; step <= 4; ++step) {
    // The third step's loss scale is more than fp16 holds.
    const float scale = step == 3 ? 65536.0f * 65536.0f : 1024.0f;
    EXPECT_EQ(rig.step(step < 3 ? step : step - 1, 2, "", scale, 0.05).applied, step != 3);
    history.push_back(values_of(rig));
  }
  return history;
}

TEST(UpdateMode, GivesTheSameBitsWithClippingLossScalesAndAnOverflow) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::cpu, Placement::nvme}) {
      const History expected = train_clipped(UpdateMode::after_backward, parameters, states);
      EXPECT_EQ(expected[1], expected[2]) << "the overflow changed something";
      EXPECT_NE(expected[2], expected[3]);
      for (const UpdateMode mode : kOtherModes)
        EXPECT_EQ(train_clipped(mode, parameters, states), expected) << name_of(mode) << name_of(parameters);
    }
  }
}

std::vector<std::byte> evaluated(Rig& rig) {
  std::vector<std::byte> seen;
  const std::vector<TensorId> list = {TensorId{2}, TensorId{4}};
  rig.offloader->begin_evaluation();
  {
    const Lease lease(*rig.offloader, "look/inference", list, UseKind::inference);
    for (const TensorId id : list) {
      const std::byte* data = lease.parameter<std::byte>(id);
      seen.insert(seen.end(), data, data + rig.specs[index_of(id)].element_count() * 2);
    }
  }
  rig.offloader->end_evaluation();
  return seen;
}

TEST(UpdateMode, ShowsTheStateOfTheStepToWhoeverAsksBetweenSteps) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::nvme};
    for (const UpdateMode mode : kOtherModes) {
      c.mode = mode;
      Rig rig(c);
      Rig expected({parameters, Placement::nvme});
      for (uint64_t step = 1; step <= 6; ++step) {
        rig.step(step, 1);
        expected.step(step, 1);
        if (step % 3 == 1) {
          EXPECT_EQ(evaluated(rig), evaluated(expected)) << name_of(mode);
        } else if (step % 3 == 2) {
          EXPECT_EQ(rig.records(), expected.records()) << name_of(mode);
        }
        EXPECT_EQ(rig.offloader->update_pending(), mode == UpdateMode::next_forward && step % 3 == 0);
      }
    }
  }
}

TEST(UpdateMode, ChangesBetweenSteps) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::nvme};
    c.holds_gradients = parameters == Placement::none;  // else no other mode is possible there
    Rig rig(c);
    Reference reference(rig.specs, 1);
    const UpdateMode modes[] = {UpdateMode::next_forward, UpdateMode::during_backward,
                                UpdateMode::next_forward, UpdateMode::after_backward,
                                UpdateMode::during_backward};
    for (uint64_t step = 1; step <= std::size(modes); ++step) {
      rig.offloader->set_update_mode(modes[step - 1]);
      rig.step(step, 1);
      reference.step(step);
    }
    expect_same_as_reference(rig, reference);
  }
}

TEST(UpdateMode, TakesAnOperationThatIsSkippedOrComesUnannounced) {
  for (const UpdateMode mode : kOtherModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      Case c{parameters, Placement::nvme};
      c.tight = false;
      c.mode = mode;
      Rig rig(c);
      Reference reference(rig.specs, 1);
      for (uint64_t step = 1; step <= 5; ++step) {
        const std::string skip = step % 2 == 0 ? "block1" : "";
        rig.step(step, 1, skip);
        reference.step(step, skip);
      }
      expect_same_as_reference(rig, reference);
    }
  }
}

TEST(UpdateMode, LeavesTheWeightsOfTheStepBeforeWhenAStepIsAbandoned) {
  for (const UpdateMode mode : kOtherModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      Case c{parameters, Placement::nvme};
      c.mode = mode;
      Rig rig(c);
      Reference reference(rig.specs, 1);
      const std::vector<TensorId> first = {TensorId{0}};
      for (uint64_t step = 1; step <= 3; ++step) {
        rig.offloader->begin_step();
        { const Lease lease(*rig.offloader, "mb0/embed/forward", first, UseKind::forward); }
        if (step == 2) {
          const Lease lease(*rig.offloader, "mb0/embed/backward", first, UseKind::backward);
        }
        rig.offloader->abandon_step();
        rig.step(step, 1);
        reference.step(step);
      }
      expect_same_as_reference(rig, reference);
    }
  }
}

TEST(UpdateMode, EndsWithAnUpdatePending) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    Case c{parameters, Placement::nvme};
    c.mode = UpdateMode::next_forward;
    Rig rig(c);
    rig.step(1, 1);
    EXPECT_TRUE(rig.offloader->update_pending());
    rig.offloader.reset();
    Rig half(c);
    half.step(1, 1);
    half.offloader->begin_step();
    const std::vector<TensorId> first = {TensorId{0}};
    { const Lease lease(*half.offloader, "mb0/embed/forward", first, UseKind::forward); }
    half.offloader.reset();
  }
}

TEST(UpdateMode, IsRefusedWhereStatesAreOnTheDevice) {
  Rig rig({Placement::cpu, Placement::none});
  for (const UpdateMode mode : kOtherModes) {
    EXPECT_FALSE(rig.offloader->why_not(mode).empty());
    try {
      rig.offloader->set_update_mode(mode);
      FAIL() << "a mode that is not possible was set";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_NE(std::string(error.what()).find("states are on the device"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(rig.offloader->update_mode(), UpdateMode::after_backward);
}

// --- What is moved ---

OffloadCounters moved_in_a_step(const Case& c) {
  Rig rig(c);
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step, c.accumulation);
  rig.offloader->finish_update();
  const OffloadCounters before = rig.offloader->report().counters();
  rig.step(4, c.accumulation);
  rig.step(5, c.accumulation);
  rig.offloader->finish_update();
  return rig.offloader->report().counters() - before;
}

TEST(UpdateMode, MovesTheBytesOfEveryModeExactly) {
  for (const uint32_t accumulation : {1u, 2u}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      uint64_t elements = 0;
      for (const UpdateMode mode :
           {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
        Case c{parameters, Placement::nvme, DataType::bf16, accumulation};
        c.mode = mode;
        const Rig rig(c);
        elements = 0;
        for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk)
          elements += rig.space.chunk(ChunkId{chunk}).elements;
        const OffloadCounters moved = moved_in_a_step(c);
        EXPECT_EQ(moved.record_read_bytes, 2 * 12 * elements) << name_of(mode);
        EXPECT_EQ(moved.record_write_bytes, 2 * 12 * elements) << name_of(mode);
        EXPECT_EQ(moved.param_write_bytes, parameters == Placement::nvme ? 2 * 2 * elements : 0);
        EXPECT_EQ(moved.param_read_bytes > 0, parameters == Placement::nvme);
      }
    }
  }
}

// With room on the device for everything, a step fetches each chunk once forward, and backward finds it
// there.
TEST(UpdateMode, TakesFreshParametersToTheDeviceWithoutReadingThemBack) {
  for (const uint32_t accumulation : {2u, 3u}) {  // with one they stay in host memory
    Case c{Placement::nvme, Placement::nvme, DataType::bf16, accumulation};
    c.holds_gradients = true;
    const OffloadCounters after = moved_in_a_step(c);
    c.mode = UpdateMode::next_forward;
    const OffloadCounters next = moved_in_a_step(c);
    const Rig rig(c);
    uint64_t elements = 0;
    for (uint32_t chunk = 0; chunk < rig.space.chunk_count(); ++chunk)
      elements += rig.space.chunk(ChunkId{chunk}).elements;
    EXPECT_GE(after.param_read_bytes, next.param_read_bytes + 2 * 2 * elements);
    EXPECT_GE(next.h2d_bytes, 2 * 2 * elements) << "they were not needed";
  }
}

TEST(UpdateMode, TakesTheSameDecisionsInEveryRun) {
  for (const UpdateMode mode : kOtherModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      Case c{parameters, Placement::nvme, DataType::bf16, 1};
      c.mode = mode;
      const OffloadCounters first = moved_in_a_step(c);
      c.d2h_bytes_per_second = 64 * kMiB;
      const OffloadCounters second = moved_in_a_step(c);
      EXPECT_EQ(first.h2d_bytes, second.h2d_bytes);
      EXPECT_EQ(first.d2h_bytes, second.d2h_bytes);
      EXPECT_EQ(first.param_read_bytes, second.param_read_bytes);
      EXPECT_EQ(first.eviction_count, second.eviction_count);
      EXPECT_EQ(first.fetch_count, second.fetch_count);
      EXPECT_EQ(first.demand_fetch_count, second.demand_fetch_count);
    }
  }
}

TEST(UpdateMode, ShowsAStateThatIsLoadedAndNothingOfTheUpdateBefore) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const uint32_t accumulation : {1u, 2u}) {
      Case c{parameters, Placement::cpu};
      c.mode = UpdateMode::next_forward;
      c.accumulation = accumulation;
      Rig rig(c);
      const std::vector<std::byte> first = rig.state();
      rig.step(1);
      rig.offloader->finish_update();
      toy::initialise(*rig.offloader);
      EXPECT_EQ(rig.state(), first) << name_of(parameters) << " " << accumulation;
    }
  }
}

TEST(UpdateMode, TellsWhenEveryChunkWasUpdatedAndNeeded) {
  Case c{Placement::cpu, Placement::nvme};
  c.mode = UpdateMode::next_forward;
  Rig rig(c);
  rig.step(1, 1);
  rig.step(2, 1);
  const std::span<const ChunkTimes> times = rig.offloader->report().last_update_times();
  ASSERT_EQ(times.size(), rig.space.chunk_count());
  EXPECT_EQ(times.front().chunk, ChunkId{0}) << "the first that is used";
  for (const ChunkTimes& chunk : times) {
    EXPECT_GT(chunk.read_ns, 0u);
    EXPECT_GT(chunk.updated_ns, chunk.read_ns);
    EXPECT_GT(chunk.needed_ns, 0u);
  }
}

// --- A gradient that is not finite when others have been updated ---

TEST(UpdateMode, SaysWhenAnInfiniteGradientWasFoundTooLate) {
  for (const uint32_t tensor : {0u, 5u}) {  // complete last, and first of all
    Case c{Placement::nvme, Placement::nvme};
    c.mode = UpdateMode::during_backward;
    Rig rig(c);
    rig.step(1, 1);
    const std::vector<OptimizerSettings> groups = toy::groups();
    rig.offloader->begin_step();
    rig.offloader->announce_update({groups, 2, 0, 1});
    const std::vector<toy::Use> uses = toy::forward_uses(false);
    for (size_t u = uses.size(); u-- > 0;) {
      std::vector<TensorId> list;
      for (uint32_t t : uses[u].tensors) list.push_back(TensorId{t});
      const Lease lease(*rig.offloader, "mb0/" + uses[u].name + "/backward", list, UseKind::backward);
      if (std::ranges::find(list, TensorId{tensor}) == list.end()) continue;
      for (uint64_t e = 0; e < rig.specs[tensor].element_count(); ++e)
        toy::store(lease.gradient(TensorId{tensor}).data, e, DataType::bf16,
                   std::numeric_limits<float>::infinity());
    }
    rig.offloader->end_micro_batch();
    const UpdateResult result = rig.offloader->update({groups, 2, 0, 1});
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(result.partly_applied, tensor == 0);
    if (result.partly_applied) {
      EXPECT_THROW(rig.offloader->begin_step(), Error);
      EXPECT_THROW(rig.records(), Error);
    } else {
      EXPECT_TRUE(rig.step(2, 1).applied);
    }
  }
}

}  // namespace
}  // namespace terrace::update_mode_test
