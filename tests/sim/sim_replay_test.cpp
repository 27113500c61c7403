// Replays of schedules whose traffic and times are known beforehand.
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/sim/internal/level_replay.h>
#include <terrace/sim/lower_bound.h>
#include <terrace/sim/simulation.h>

#include "sim/sim_schedules.h"
#include "support/expect_error.h"

namespace terrace::sim_replay_test {
namespace {

using testing::expect_error;

SimMachine three_tiers(uint64_t device_bytes, uint64_t host_bytes) {
  return {{{"device", device_bytes}, {"host", host_bytes}, {"nvme", kUnboundedBytes}},
          {{2e9, 2e9, 0}, {1e9, 1e9, 0}},
          0};
}

// Records: each is updated once a step, in host memory.
SimSchedule records(uint32_t count) {
  SimSchedule schedule{"records", {}, {}};
  for (uint32_t i = 0; i < count; ++i) {
    schedule.items.push_back({"record" + std::to_string(i), 100, SimRole::state, 2});
    schedule.uses.push_back({"update" + std::to_string(i), 1, {}, {i}, {}, 10, {}});
  }
  return schedule;
}

TEST(SimReplay, RecordsThatAreKeptAreTheOnesThatDoNotMove) {
  const SimSchedule schedule = records(24);
  const SimMachine machine = three_tiers(0, 8 * 100);
  const LowerBound bound = lower_bound(schedule, machine, 1);
  EXPECT_NEAR(bound.bytes_per_step, 2 * 16 * 100, 1e-3);
  const SimResult opt = simulate(schedule, machine, SimPolicy::opt);
  EXPECT_EQ(opt.links[1].up_bytes, 16 * 100);
  EXPECT_EQ(opt.links[1].down_bytes, 16 * 100);
  EXPECT_EQ(opt.links[0].bytes(), 0);
  for (const SimPolicy policy : {SimPolicy::lru, SimPolicy::fifo}) {
    const SimResult result = simulate(schedule, machine, policy);
    EXPECT_EQ(result.links[1].up_bytes, 24 * 100) << name_of(policy);
    EXPECT_EQ(result.links[1].down_bytes, 24 * 100) << name_of(policy);
  }
}

TEST(SimReplay, ForwardAndBackwardFetchTwiceTheLayersLessWhatFits) {
  SimSchedule schedule{"layers", {}, {}};
  constexpr uint32_t kLayers = 12, kRoom = 5;
  for (uint32_t l = 0; l < kLayers; ++l)
    schedule.items.push_back({"layer" + std::to_string(l), 64, SimRole::param, 1});
  for (uint32_t l = 0; l < kLayers; ++l)
    schedule.uses.push_back({"forward" + std::to_string(l), 0, {l}, {}, {}, 1, {}});
  for (uint32_t l = kLayers; l-- > 0;)
    schedule.uses.push_back({"backward" + std::to_string(l), 0, {l}, {}, {}, 2, {}});
  // Updated on the host: nothing that was fetched in one step is of use in the next.
  for (uint32_t l = 0; l < kLayers; ++l)
    schedule.uses.push_back({"update" + std::to_string(l), 1, {}, {l}, {}, 1, {}});
  const SimMachine machine = sim_test::two_tiers(kRoom * 64);
  const LowerBound bound = lower_bound(schedule, machine, 0);
  EXPECT_EQ(bound.kind, BoundKind::exact);
  EXPECT_EQ(bound.bytes_per_step, (2 * kLayers - kRoom) * 64);
  EXPECT_EQ(simulate(schedule, machine, SimPolicy::opt).links[0].up_bytes, (2 * kLayers - kRoom) * 64);
  EXPECT_EQ(simulate(schedule, machine, SimPolicy::lru).links[0].up_bytes, (2 * kLayers - kRoom) * 64);
  EXPECT_EQ(simulate(schedule, machine, SimPolicy::opt).links[0].down_bytes, 0);
}

TEST(SimReplay, IsTheSameEveryTimeAndMovesNoLessThanTheBound) {
  const SimSchedule schedule = sim_test::training_step(6, 2, 100, 600);
  SimMachine machine = three_tiers(350, 3000);
  machine.prefetch_depth = 2;
  for (const SimPolicy policy : sim_policies()) {
    const SimResult result = simulate(schedule, machine, policy);
    EXPECT_EQ(result, simulate(schedule, machine, policy)) << name_of(policy);
    EXPECT_FALSE(result.log[0].decisions.empty());
    for (uint32_t tier = 0; tier < 2; ++tier)
      EXPECT_GE(result.links[tier].bytes() + 1e-3, lower_bound(schedule, machine, tier).bytes_per_step);
  }
}

TEST(SimReplay, PoliciesDecideDifferently) {
  const SimSchedule schedule = sim_test::training_step(8, 3, 100, 600);
  const SimMachine machine = three_tiers(420, 3600);
  std::vector<std::vector<SimLevelLog>> logs;
  for (const SimPolicy policy : sim_policies()) {
    const SimResult result = simulate(schedule, machine, policy);
    for (const auto& other : logs) EXPECT_NE(result.log, other) << name_of(policy);
    logs.push_back(result.log);
  }
}

// With four tiers, what the third has no room for passes through it: up and, changed, down again at one
// moment.
TEST(SimReplay, WhatPassesThroughATierIsOneTouchOfTheNext) {
  SimSchedule schedule = records(6);
  for (SimItem& item : schedule.items) item.home_tier = 3;
  const SimMachine machine = {
      {{"device", 0}, {"host", 2 * 100}, {"pool", 3 * 100}, {"nvme", kUnboundedBytes}},
      {{1e9, 1e9, 0}, {1e9, 1e9, 0}, {1e9, 1e9, 0}},
      0};
  const SimResult opt = simulate(schedule, machine, SimPolicy::opt);
  EXPECT_EQ(opt.links[1].bytes(), 2 * 4 * 100);
  EXPECT_EQ(opt.links[2].bytes(), 2 * 1 * 100) << "two are in the host, three in the pool";
  for (const SimPolicy policy : sim_policies()) {
    const SimResult result = simulate(schedule, machine, policy);
    EXPECT_GE(result.links[2].bytes() + 1e-3, lower_bound(schedule, machine, 2).bytes_per_step);
  }
}

TEST(SimReplay, ComparisonsGoByTheOrderOfUsesOrOfArrivals) {
  const SimSchedule schedule = records(4);
  const sim::CacheLevel level = sim::level_below(schedule, three_tiers(0, 300), 1, {{}});
  const std::vector<uint32_t> candidates = {0, 1, 2};
  const auto victim = [&](SimPolicy policy) {
    const auto rule = sim::make_rule(policy, level);
    for (const uint32_t item : {2u, 0u, 1u}) rule->on_arrival(item), rule->on_use(item);
    rule->on_use(2);
    return rule->choose(candidates, 0, false);
  };
  EXPECT_EQ(victim(SimPolicy::lru), 0u);
  EXPECT_EQ(victim(SimPolicy::fifo), 2u);
  EXPECT_EQ(victim(SimPolicy::mru), 2u);
  EXPECT_EQ(sim::make_rule(SimPolicy::mru, level)->choose(candidates, 0, false), 0u)
      << "of equals the lowest";
}

TEST(SimReplay, AShuffledScheduleChangesWhatOptDecides) {
  SimSchedule schedule = sim_test::training_step(6, 1, 100, 600);
  const SimMachine machine = three_tiers(350, 3000);
  const SimResult before = simulate(schedule, machine, SimPolicy::opt);
  std::swap(schedule.uses[1], schedule.uses[4]);
  EXPECT_NE(before.log, simulate(schedule, machine, SimPolicy::opt).log);
}

TEST(SimReplay, WhatIsMadeIsNotLoadedAndWhatIsMadeAnewIsNotWritten) {
  // A scratch item that each use makes and nobody reads, and one that is read afterwards below.
  SimSchedule schedule{
      "makes", {{"scratch", 10, SimRole::activation, 1}, {"grad", 20, SimRole::grad, 1}}, {}};
  schedule.uses.push_back({"a", 0, {}, {}, {0}, 1, {}});
  schedule.uses.push_back({"b", 0, {}, {}, {1}, 1, {}});
  schedule.uses.push_back({"update", 1, {1}, {}, {}, 1, {}});
  const SimResult result = simulate(schedule, sim_test::two_tiers(20), SimPolicy::lru);
  EXPECT_EQ(result.links[0].up_bytes, 0);
  EXPECT_EQ(result.links[0].down_bytes, 20);
}

TEST(SimReplay, MemoryThatSomethingElseTakesMakesItemsLeave) {
  SimSchedule schedule{"peak", {{"a", 10, SimRole::param, 1}}, {}};
  schedule.uses.push_back({"use", 0, {0}, {}, {}, 1, {}});
  schedule.uses.push_back({"peak", 0, {}, {}, {}, 1, {15}});
  EXPECT_EQ(simulate(schedule, sim_test::two_tiers(20), SimPolicy::opt).links[0].up_bytes, 10);
  EXPECT_EQ(lower_bound(schedule, sim_test::two_tiers(20), 0).bytes_per_step, 10);
  EXPECT_EQ(simulate(schedule, sim_test::two_tiers(25), SimPolicy::opt).links[0].up_bytes, 0);
}

TEST(SimReplay, PatrickStarCopiesWhatIsCleanAndGeminiDoesNot) {
  SimSchedule schedule{"turns", {}, {}};
  for (uint32_t i = 0; i < 4; ++i) {
    schedule.items.push_back({"chunk" + std::to_string(i), 10, SimRole::param, 1});
    schedule.uses.push_back({"use" + std::to_string(i), 0, {i}, {}, {}, 1, {}});
  }
  const SimResult patrickstar = simulate(schedule, sim_test::two_tiers(20), SimPolicy::patrickstar);
  EXPECT_EQ(patrickstar.links[0].up_bytes, patrickstar.links[0].down_bytes);
  EXPECT_GT(patrickstar.links[0].down_bytes, 0);
  EXPECT_EQ(simulate(schedule, sim_test::two_tiers(20), SimPolicy::gemini).links[0].down_bytes, 0);
}

// Of two chunks that the step does not use again the first leaves, though the next step begins with it.
TEST(SimReplay, GeminiLooksNoFurtherThanTheEndOfTheStep) {
  SimSchedule schedule{"turns", {}, {}};
  for (uint32_t i = 0; i < 3; ++i) {
    schedule.items.push_back({"chunk" + std::to_string(i), 10, SimRole::param, 1});
    schedule.uses.push_back({"use" + std::to_string(i), 0, {i}, {}, {}, 1, {}});
  }
  EXPECT_EQ(simulate(schedule, sim_test::two_tiers(20), SimPolicy::gemini).links[0].up_bytes, 20);
  EXPECT_EQ(simulate(schedule, sim_test::two_tiers(20), SimPolicy::patrickstar).links[0].up_bytes, 15);
}

// Two chunks in turn, room for both of them only in time: each use loads 1000 bytes at 1 GB/s and computes
// 400 ns.
TEST(SimReplay, TransfersAheadHideBehindComputingWhereThereIsRoom) {
  SimSchedule schedule{"turns", {}, {}};
  for (uint32_t i = 0; i < 3; ++i) {
    schedule.items.push_back({"chunk" + std::to_string(i), 1000, SimRole::param, 1});
    schedule.uses.push_back({"use" + std::to_string(i), 0, {i}, {}, {}, 400, {}});
  }
  SimMachine machine = sim_test::two_tiers(1000);
  EXPECT_NEAR(simulate(schedule, machine, SimPolicy::lru).step_ns, 3 * 1400, 1e-6);
  machine.prefetch_depth = 1;  // no room for two
  EXPECT_NEAR(simulate(schedule, machine, SimPolicy::lru).step_ns, 3 * 1400, 1e-6);
  machine.tiers[0].capacity_bytes = 2000;
  const SimResult ahead = simulate(schedule, machine, SimPolicy::lru);
  EXPECT_EQ(ahead.links[0].up_bytes, 3000);
  EXPECT_NEAR(ahead.step_ns, 3 * 1000, 1e-6);  // the link is what binds
  EXPECT_EQ(ahead.compute_ns, 1200);
  EXPECT_NEAR(ahead.links[0].busy_up_ns, 3000, 1e-6);
}

TEST(SimReplay, BothDirectionsMoveAtOnceAndLatencyCounts) {
  SimSchedule schedule{"changes", {}, {}};
  for (uint32_t i = 0; i < 2; ++i) {
    schedule.items.push_back({"chunk" + std::to_string(i), 1000, SimRole::param, 1});
    schedule.uses.push_back({"use" + std::to_string(i), 0, {}, {i}, {}, 100, {}});
  }
  SimMachine machine = sim_test::two_tiers(1000);
  machine.links[0].latency_ns = 50;
  // Written, then loaded into its place.
  EXPECT_NEAR(simulate(schedule, machine, SimPolicy::lru).step_ns, 2 * (1050 + 1050 + 100), 1e-6);
}

TEST(SimReplay, WhatCannotBeReplayedIsRefusedByName) {
  SimSchedule schedule = sim_test::training_step(2, 1, 100, 600);
  EXPECT_NO_THROW(check_simulation(schedule, three_tiers(250, 3000)));
  expect_error(ErrorKind::capacity, {"backward1"},
               [&] { simulate(schedule, three_tiers(200, 3000), SimPolicy::opt); });
  schedule.uses[0].reads = {1, 0};
  expect_error(ErrorKind::config, {"ascending"}, [&] { check_schedule(schedule); });
  schedule.uses[0].reads = {77};
  expect_error(ErrorKind::config, {"77"}, [&] { check_schedule(schedule); });
  schedule.uses[0] = {"deep", 2, {0}, {}, {}, 1, {}};
  expect_error(ErrorKind::config, {"below the home"}, [&] { check_schedule(schedule); });
  schedule.uses[0] = {"twice", 0, {0}, {0}, {}, 1, {}};
  expect_error(ErrorKind::config, {"two of its lists"}, [&] { check_schedule(schedule); });
}

}  // namespace
}  // namespace terrace::sim_replay_test
