// The parameters of a step alone: what a use needs is fetched, what follows comes ahead, and a device that is
// full of what an update still has is waited for.
#include <terrace/offload/step/parameter_fetches.h>

#include <gtest/gtest.h>

#include "offload/step/step_rig.h"
#include "support/expect_error.h"

namespace terrace::parameter_fetches_test {
namespace {

struct Fetching {
  explicit Fetching(uint32_t device_slots) : rig(device_slots) {
    const TensorUse uses[] = {{"first", UseKind::forward, {TensorId{0}}},
                              {"second", UseKind::forward, {TensorId{1}}},
                              {"third", UseKind::forward, {TensorId{2}}}};
    schedule = schedule_of(rig.space, uses, LeasedGradients::leave);
  }
  EvictionContext at(uint32_t position) const { return {schedule, position}; }
  // The use fetches what it needs and waits for it.
  void begin(OpenUse& use, uint32_t position) {
    fetches.pin(use);
    fetches.fetch_missing(use, at(position));
    fetches.wait_for_chunks(use);
  }
  void end(const OpenUse& use) { fetches.unpin(use); }
  OffloadCounters counters() const {
    OffloadCounters counters;
    fetches.count(counters);
    return counters;
  }
  StepRig rig;
  Schedule schedule;
  UpdateRunner runner = rig.make_runner();
  EarlyUpdate early{rig.run, rig.homes, rig.cache, rig.states, runner};
  int finished = 0;
  ParameterFetches fetches{rig.run, rig.homes, rig.cache, runner, early, rig.decisions, [this] {
                             ++finished;
                             runner.wait();
                           }};
};

TEST(ParameterFetches, BringWhatAUseNeedsAndCountWhatWasNotAhead) {
  Fetching f(2);
  OpenUse use = f.rig.use("first", UseKind::forward, {0});
  f.begin(use, 0);
  EXPECT_EQ(to_float(*reinterpret_cast<const Bf16*>(f.rig.cache.param_address(ChunkId{0}))),
            StepRig::kMaster);
  EXPECT_EQ(use.chunks_found, (std::array<uint32_t, 3>{0, 0, 1}));
  EXPECT_EQ(f.counters().fetch_count, 1u);
  EXPECT_EQ(f.counters().demand_fetch_count, 1u);
  f.end(use);
}

TEST(ParameterFetches, BringLaterUsesAheadIntoWhatIsFree) {
  Fetching f(2);
  OpenUse first = f.rig.use("first", UseKind::forward, {0});
  f.begin(first, 0);
  f.fetches.fetch_ahead(f.schedule, 0, first.chunks);
  EXPECT_NE(f.rig.cache.param_state(ChunkId{1}), ChunkState::absent);
  EXPECT_EQ(f.rig.cache.param_state(ChunkId{2}), ChunkState::absent);
  f.end(first);
  OpenUse second = f.rig.use("second", UseKind::forward, {1});
  f.begin(second, 1);
  EXPECT_EQ(second.chunks_found[2], 0u);
  EXPECT_EQ(f.counters().fetch_count, 2u);
  EXPECT_EQ(f.counters().demand_fetch_count, 1u);
  f.end(second);
}

// The schedule of the step before may have a use to come of a chunk whose update has begun. A copy of it
// would be of no use to this step, and one with the parameters of before the update would be taken for new
// ones by the next.
TEST(ParameterFetches, BringNothingAheadThatAnUpdateWithinTheStepHasTaken) {
  Fetching f(2);
  f.early.begin_step();
  f.rig.land_all(0.5f);
  for (uint32_t t = 0; t < StepRig::kChunks; ++t) f.rig.states.change(TensorId{t}, TensorState::hold);
  f.rig.gradients->end_displacement();
  f.early.note_landing(ChunkId{1});
  EXPECT_TRUE(f.early.has_taken(ChunkId{1}));
  f.fetches.fetch_ahead(f.schedule, 0, {});
  EXPECT_EQ(f.rig.cache.param_state(ChunkId{1}), ChunkState::absent);
  EXPECT_NE(f.rig.cache.param_state(ChunkId{2}), ChunkState::absent);
  EXPECT_EQ(f.counters().fetch_count, 1u);
}

TEST(ParameterFetches, SayWhichOperationTheDeviceHasNoRoomFor) {
  Fetching f(1);
  OpenUse use = f.rig.use("wide", UseKind::forward, {0, 1});
  f.fetches.pin(use);
  testing::expect_error(
      ErrorKind::capacity,
      {"wide", "takes 2 chunk slots of 8192 bytes, and there are 1", "to 57344 bytes at least"},
      [&] { f.fetches.fetch_missing(use, f.at(0)); });
  EXPECT_EQ(f.finished, 0);
  f.end(use);
}

TEST(ParameterFetches, WaitForTheUpdateOfWhatTheyFetch) {
  Fetching f(2);
  f.runner.set_mode(UpdateMode::next_forward);
  f.rig.land_all(0.5f);
  f.runner.set_constants(f.rig.settings, 0);
  f.runner.run(f.schedule);
  f.rig.gradients->end_displacement();  // new parameters are on their way
  OpenUse use = f.rig.use("first", UseKind::forward, {0});
  f.begin(use, 0);
  EXPECT_EQ(to_float(*reinterpret_cast<const Bf16*>(f.rig.cache.param_address(ChunkId{0}))), 0.5f);
  EXPECT_FALSE(f.runner.is_unsettled(ChunkId{0}));
  f.end(use);
  f.runner.wait();
}

}  // namespace
}  // namespace terrace::parameter_fetches_test
