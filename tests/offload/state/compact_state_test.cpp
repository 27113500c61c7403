// Compact state: records hold what is below bf16 parameters. It changes no bit of anything, moves fewer
// bytes, and leads to checkpoints that know nothing of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "offload/commits/commit_rig.h"
#include "support/allocation_counter.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::compact_state_test {
namespace {

using testing::expect_error;

std::string words(const CommitCase& c) {
  return fmt::format("parameters {}, states {}, {}/4 cached, chunks of {}, {} micro-batches",
                     name_of(c.parameters), name_of(c.states), c.cached_quarters, c.chunk_elements,
                     c.accumulation);
}

std::vector<CommitCase> placements() {
  std::vector<CommitCase> cases = {{.parameters = Placement::none, .states = Placement::none}};
  for (const Placement states : {Placement::cpu, Placement::nvme}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const uint32_t quarters : {0u, 3u})
        cases.push_back({.parameters = parameters, .states = states, .cached_quarters = quarters});
    }
  }
  for (CommitCase& c : cases) c.durable = false;
  return cases;
}

TEST(CompactState, ChangesNoBitWhateverThePlacement) {
  for (const uint32_t accumulation : {1u, 3u}) {
    const auto expected = states_without_commits({.accumulation = accumulation}, 3);
    for (CommitCase c : testing::thinned(placements())) {
      c.accumulation = accumulation;
      c.chunk_elements = accumulation == 1 ? kTileElements : 2 * kTileElements;
      c.layout = kCompact;
      SCOPED_TRACE(words(c));
      const ScratchFolder folder;
      CommitRig rig(c, folder.path());
      EXPECT_EQ(rig.state(), expected[0]);
      for (uint64_t step = 1; step <= 3; ++step) {
        rig.step(step);
        EXPECT_EQ(rig.state(), expected[step]) << "step " << step;
      }
    }
  }
}

TEST(CompactState, ChangesNoBitWheneverUpdatesRun) {
  for (const double clip_norm : {0.0, 0.5}) {
    const auto expected = states_without_commits({.clip_norm = clip_norm}, 4);
    for (CommitCase c : testing::thinned(placements())) {
      if (c.states == Placement::none || c.parameters == Placement::none) continue;
      for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
        for (const uint64_t tiles : {1u, 2u}) {
          c.chunk_elements = tiles * kTileElements;
          c.layout = kCompact;
          c.mode = mode;
          c.clip_norm = clip_norm;
          SCOPED_TRACE(fmt::format("{}, {}, clipped to {}", words(c), name_of(mode), clip_norm));
          const ScratchFolder folder;
          CommitRig rig(c, folder.path());
          for (uint64_t step = 1; step <= 4; ++step) {
            rig.step(step);
            if (step != 2) continue;
            EXPECT_EQ(rig.state(), expected[2]);
          }
          EXPECT_EQ(rig.state(), expected[4]);
        }
      }
    }
  }
}

TEST(CompactState, GivesTheValuesOfMastersToWeightFiles) {
  for (CommitCase c : testing::thinned(placements())) {
    SCOPED_TRACE(words(c));
    std::vector<std::vector<float>> found[2];
    for (const bool compact : {false, true}) {
      c.layout = compact ? kCompact : RecordLayout{};
      const ScratchFolder folder;
      CommitRig rig(c, folder.path());
      rig.step(1);
      found[compact].resize(rig.specs.size());
      rig.offloader->state().export_values([](TensorId tensor) { return index_of(tensor) != 2; },
                                           [&](TensorId tensor, uint64_t, std::span<const float> values) {
                                             auto& all = found[compact][index_of(tensor)];
                                             all.insert(all.end(), values.begin(), values.end());
                                           });
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

// A checkpoint of either form leads on to the other.
TEST(CompactState, GoesOnFromACheckpointOfThePlainFormAndTheOtherWayRound) {
  const auto expected = states_without_commits({}, 4);
  for (const bool to_compact : {false, true}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      CommitCase c{.parameters = parameters, .durable = false};
      c.layout = to_compact ? RecordLayout{} : kCompact;
      const ScratchFolder first_folder, second_folder;
      CommitRig first(c, first_folder.path());
      first.step(1);
      first.step(2);
      const std::vector<std::byte> saved = first.records();
      c.layout = to_compact ? kCompact : RecordLayout{};
      CommitRig second(c, second_folder.path());
      second.step(1);  // of what is replaced
      std::span<const std::byte> left = saved;
      second.offloader->state().import_records([&](std::span<std::byte> tiles) {
        ASSERT_LE(tiles.size(), left.size());
        std::ranges::copy(left.first(tiles.size()), tiles.begin());
        left = left.subspan(tiles.size());
      });
      EXPECT_TRUE(left.empty());
      EXPECT_EQ(second.state(), expected[2]);
      second.step(3);
      second.step(4);
      EXPECT_EQ(second.state(), expected[4]) << name_of(parameters) << " to compact " << to_compact;
    }
  }
}

TEST(CompactState, LeavesAnUpdateThatOverflowsWithoutATrace) {
  for (CommitCase c : testing::thinned(placements())) {
    c.layout = kCompact;
    SCOPED_TRACE(words(c));
    const ScratchFolder folder;
    CommitRig rig(c, folder.path());
    rig.step(1);
    const std::vector<std::byte> before = rig.state();
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0, "", std::numeric_limits<float>::infinity());
    rig.offloader->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    EXPECT_FALSE(rig.offloader->update({groups, 2, 0, 1}).applied);
    EXPECT_EQ(rig.state(), before);
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->abandon_step();
    EXPECT_EQ(rig.state(), before);
  }
}

// 10 bytes of records each way instead of 12; where parameters are read for the update, 2 more of these.
TEST(CompactState, MovesTheBytesThatArithmeticSays) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    OffloadCounters moved[2];
    uint64_t elements = 0;
    for (const bool compact : {false, true}) {
      CommitCase c{.parameters = parameters, .cached_quarters = 0, .durable = false};
      c.layout = compact ? kCompact : RecordLayout{};
      const ScratchFolder folder;
      CommitRig rig(c, folder.path());
      ASSERT_EQ(rig.offloader->plan().host_record_slots, 0u);
      elements = rig.trainable_elements();
      rig.step(1);
      const OffloadCounters before = rig.offloader->report().counters();
      rig.step(2);
      moved[compact] = rig.offloader->report().counters() - before;
      const TrafficBound bound = rig.offloader->report().traffic_bound();
      EXPECT_EQ(moved[compact].record_read_bytes, bound.record_read_bytes);
      EXPECT_EQ(moved[compact].record_write_bytes, bound.record_write_bytes);
      EXPECT_EQ(moved[compact].param_write_bytes, bound.param_write_bytes);
      EXPECT_EQ(moved[compact].d2h_bytes, bound.d2h_bytes);
    }
    const bool on_nvme = parameters == Placement::nvme, on_device = parameters == Placement::none;
    EXPECT_EQ(moved[0].record_read_bytes, 12 * elements);
    EXPECT_EQ(moved[1].record_read_bytes, 10 * elements);
    EXPECT_EQ(moved[1].record_write_bytes, 10 * elements);
    EXPECT_EQ(moved[1].param_read_bytes - moved[0].param_read_bytes, on_nvme ? 2 * elements : 0);
    EXPECT_EQ(moved[1].param_write_bytes, moved[0].param_write_bytes);
    EXPECT_EQ(moved[1].param_write_bytes, on_nvme ? 2 * elements : 0);
    EXPECT_EQ(moved[1].d2h_bytes - moved[0].d2h_bytes, on_device ? 2 * elements : 0);
    EXPECT_EQ(moved[1].h2d_bytes, moved[0].h2d_bytes);
  }
}

// What is fresh goes to the device from host memory: 26 bytes instead of 28 where nothing else is saved.
TEST(CompactState, ReadsNoParameterBackThatTheNextForwardMakes) {
  uint64_t read[2];
  for (const bool next_forward : {false, true}) {
    CommitCase c{.parameters = Placement::nvme, .cached_quarters = 0, .durable = false, .layout = kCompact};
    c.holds_gradients = true;  // what is fresh waits in their memory
    c.mode = next_forward ? UpdateMode::next_forward : UpdateMode::after_backward;
    const ScratchFolder folder;
    CommitRig rig(c, folder.path());
    for (uint64_t step = 1; step <= 3; ++step) rig.step(step);
    rig.offloader->finish_update();
    const OffloadCounters before = rig.offloader->report().counters();
    for (uint64_t step = 4; step <= 6; ++step) rig.step(step);
    rig.offloader->finish_update();
    read[next_forward] = (rig.offloader->report().counters() - before).param_read_bytes;
    EXPECT_EQ((rig.offloader->report().counters() - before).record_read_bytes,
              3 * 10 * rig.trainable_elements());
  }
  EXPECT_LT(read[1], read[0]);
}

TEST(CompactState, AllocatesNothingInItsUpdates) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    const ScratchFolder folder;
    CommitRig rig({.parameters = parameters, .threads = 1, .layout = kCompact}, folder.path());
    for (uint64_t step = 1; step <= 3; ++step) {
      rig.step(step);
      rig.offloader->commits().begin(step_info(step));
    }
    rig.offloader->commits().finish();
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    const uint64_t before = testing::allocations_of_this_thread();
    rig.offloader->update({groups, 4, 0});
    EXPECT_EQ(testing::allocations_of_this_thread() - before, 0u) << name_of(parameters);
  }
}

TEST(CompactState, IsRefusedWhereItCannotBe) {
  const auto plan = [](DataType type, Placement parameters, Placement states) {
    const std::vector<TensorSpec> specs = toy::tensors(type, false);
    const FlatSpace space(specs, kTileElements);
    OffloadOptions options;
    options.parameters = parameters;
    options.states = states;
    options.record_layout = kCompact;
    options.device_budget_bytes = options.host_budget_bytes = kGiB;
    return plan_memory(space, {}, options);
  };
  for (const DataType type : {DataType::fp16, DataType::fp32}) {
    expect_error(ErrorKind::config, {"compact", std::string(name_of(type)), "bf16"},
                 [&] { plan(type, Placement::cpu, Placement::nvme); });
  }
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    expect_error(ErrorKind::config, {"compact", std::string(name_of(parameters)), "on the device"},
                 [&] { plan(DataType::bf16, parameters, Placement::none); });
  }
  EXPECT_EQ(plan(DataType::bf16, Placement::cpu, Placement::nvme).record_layout, kCompact);
}

// Every layout that an optimizer has, through memory and through the tier.
TEST(RecordLayouts, OfEveryOptimizerChangeNoBitWhateverThePlacementAndTheForm) {
  struct Kind {
    OptimizerKind kind;
    uint32_t moments;
  };
  for (const Kind kind : {Kind{OptimizerKind::adagrad, 1}, Kind{OptimizerKind::lion, 1},
                          Kind{OptimizerKind::sgd, 0}, Kind{OptimizerKind::adam, 2}}) {
    for (const MomentType moments : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
      CommitCase base{.states = Placement::cpu, .durable = false, .kind = kind.kind};
      base.layout = {MasterForm::whole, kind.moments, moments};
      const auto expected = states_without_commits(base, 3);
      EXPECT_EQ(expected[0].size(), expected[3].size());
      for (const MasterForm master : {MasterForm::whole, MasterForm::remainder}) {
        for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
          CommitCase c{.parameters = parameters, .chunk_elements = 2 * kTileElements, .kind = kind.kind};
          c.layout = {master, kind.moments, moments};
          SCOPED_TRACE(fmt::format("optimizer {}, {}", static_cast<int>(kind.kind), text_of(c.layout)));
          const ScratchFolder folder;
          {
            CommitRig rig(c, folder.path());
            for (uint64_t step = 1; step <= 2; ++step) rig.step(step);
            rig.offloader->commits().begin(step_info(2));
            rig.offloader->commits().finish();
            EXPECT_EQ(rig.state(), expected[2]);
            const std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
            EXPECT_EQ(commit->record_layout(), c.layout.canonical());
            std::vector<std::byte> tiles(commit->record_tile_count() * c.layout.canonical().tile_bytes());
            commit->read_records(0, tiles);
            EXPECT_EQ(tiles, rig.records());
          }
          c.start = TierStart::resume;
          CommitRig rig(c, folder.path());
          EXPECT_EQ(rig.state(), expected[2]);
          rig.step(3);
          EXPECT_EQ(rig.state(), expected[3]);
        }
      }
    }
  }
}

// Codes and fp32 have the same checkpoints, and bf16 has others.
TEST(CompactCommit, RefusesAnotherLayoutAndSaysWhetherACheckpointLeadsOn) {
  CommitCase c{.chunk_elements = 2 * kTileElements, .kind = OptimizerKind::adam};
  c.layout = {MasterForm::remainder, 2, MomentType::int8};
  const ScratchFolder folder;
  {
    CommitRig rig(c, folder.path());
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    rig.offloader->commits().finish();
  }
  c.start = TierStart::resume;
  const auto refused = [&](const RecordLayout& layout, const std::string& words) {
    CommitCase other = c;
    other.layout = layout;
    expect_error(ErrorKind::config, {"cannot resume from the nvme tier", words},
                 [&] { const CommitRig rig(other, folder.path()); });
  };
  refused({MasterForm::remainder, 2, MomentType::fp32},
          "save a checkpoint with it, from which this run goes on");
  refused({MasterForm::remainder, 2, MomentType::bf16}, "the type of the moments of the run that made it");
  CommitRig rig(c, folder.path());
  rig.step(2);
}

}  // namespace
}  // namespace terrace::compact_state_test
