// Ranks on several hosts have the numbers of one rank, and what crosses between hosts is what the formulas
// say: the parameters of a chunk come to a host once, and of gradients one sum for each group of a host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/operations/dry_communicator.h>
#include <terrace/offload/watch/counter_table.h>

#include "comm/comm_faults.h"
#include "comm/thread_world.h"
#include "offload/toy_rig.h"
#include "support/offloaders.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::hosts_test {
namespace {

using Case = ToyCase<RigKind::placement>;
constexpr uint64_t kSteps = 2;

struct Outcome {
  std::vector<std::byte> parameters;
  std::vector<double> norms;
  OffloadCounters moved;
  OffloadCounters in_last_step;  // and ahead of the next one, as the step before has for it
  TrafficBound bound;

  bool has_numbers_of(const Outcome& other) const {
    return parameters == other.parameters && norms == other.norms;
  }
};

Outcome train_rank(const Case& c) {
  const ScratchFolder folder;
  ToyRig rig(c, {folder.path()});
  Outcome outcome;
  OffloadCounters before;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    before = rig.offloader->report().counters();
    outcome.norms.push_back(rig.step(step).gradient_norm);
  }
  outcome.moved = rig.offloader->report().counters();
  outcome.in_last_step = outcome.moved - before;
  outcome.bound = rig.offloader->report().traffic_bound();
  if (!c.dry) outcome.parameters = testing::parameters_of(*rig.offloader, rig.space);
  return outcome;
}

std::vector<Outcome> train_together(const Case& c, const HostLayout& hosts, CommHook* hook = nullptr) {
  ThreadWorld world({.ranks = hosts.ranks, .hosts = hosts.hosts, .hook = hook});
  std::vector<Outcome> outcomes(hosts.ranks);
  for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
         Case mine = c;
         mine.ranks = &rank;
         mine.engine = io::EngineKind::threads;
         outcomes[rank.rank()] = train_rank(mine);
       }))
    EXPECT_EQ(failure, "");
  return outcomes;
}

constexpr HostLayout kLayouts[] = {{4, 2}, {2, 2}, {8, 2}, {3, 3}, {6, 3}, {12, 3}};
constexpr uint32_t kGroups[] = {2, 1, 4};
// A sanitizer sees the same code in the first of them.
constexpr size_t kLayoutCount = testing::kSanitized ? 1 : std::size(kLayouts);
constexpr size_t kGroupCount = testing::kSanitized ? 1 : std::size(kGroups);

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu}) {
      Case c{.parameters = parameters, .states = states, .accumulation = 9};
      if (parameters != Placement::cpu) c.type = DataType::fp32;
      c.chunk_elements = 12 * kTileElements;
      c.divided = parameters == Placement::none && states == Placement::cpu;
      c.by_copies = parameters == Placement::nvme;
      all.push_back(c);
    }
  }
  return all;
}

std::string text_of(const Case& c, const HostLayout& hosts) {
  return fmt::format("parameters {}{}, states {}, groups of {}, {} ranks on {} hosts", name_of(c.parameters),
                     c.divided ? " in shares" : "", name_of(c.states), c.gradient_group, hosts.ranks,
                     hosts.hosts);
}

TEST(Hosts, HaveTheNumbersOfOneRank) {
  uint32_t sums = 0;
  for (Case c : cases()) {
    for (const uint32_t group : std::span(kGroups).first<kGroupCount>()) {
      c.gradient_group = group;
      const Outcome alone = train_rank(c);
      for (const HostLayout& hosts : std::span(kLayouts).first<kLayoutCount>()) {
        SCOPED_TRACE(text_of(c, hosts));
        sums += StepRounds{c.accumulation, hosts.ranks, group, hosts.hosts}.sums_on_hosts() ? 1 : 0;
        const std::vector<Outcome> together = train_together(c, hosts);
        for (uint32_t r = 0; r < hosts.ranks; ++r) EXPECT_TRUE(together[r].has_numbers_of(alone)) << r;
      }
    }
  }
  EXPECT_EQ(sums, testing::kSanitized ? 6u : 6u * 6);
}

// What is rounded changes the numbers, and no layout changes those.
TEST(Hosts, HaveTheNumbersOfOneRankWhateverIsRounded) {
  for (Case c : cases()) {
    if (c.type == DataType::fp32 && c.parameters == Placement::none && !c.divided) continue;
    c.type = DataType::bf16;
    c.parameter_bits = 8;
    for (const auto& [group, bits] : {std::pair{2u, 4u}, {1u, 8u}, {4u, 8u}, {16u, 4u}}) {
      c.gradient_group = group;
      c.gradient_bits = 0;
      const Outcome unrounded = train_rank(c);
      c.gradient_bits = bits;
      const Outcome alone = train_rank(c);
      EXPECT_FALSE(alone.has_numbers_of(unrounded));
      for (const HostLayout& hosts : std::span(kLayouts).first<kLayoutCount>()) {
        SCOPED_TRACE(text_of(c, hosts));
        const std::vector<Outcome> together = train_together(c, hosts);
        for (uint32_t r = 0; r < hosts.ranks; ++r) EXPECT_TRUE(together[r].has_numbers_of(alone)) << r;
      }
      if (testing::kSanitized) break;
    }
  }
}

TEST(Hosts, AreAsLateAsTheyLike) {
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    Case c{.parameters = Placement::cpu, .states = Placement::cpu, .accumulation = 9, .gradient_group = 2};
    c.chunk_elements = 4 * kTileElements;
    c.mode = mode;
    const Outcome alone = train_rank(c);
    for (const uint64_t seed : {1u, 2u}) {
      CommFaults late({}, 200'000, seed);
      for (const Outcome& one : train_together(c, {4, 2}, &late)) EXPECT_TRUE(one.has_numbers_of(alone));
    }
  }
}

// Else the comparison would say nothing of what crosses.
TEST(Hosts, HaveOtherNumbersWhereOneBitCrossesWrong) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu, .type = DataType::fp32, .accumulation = 9};
  c.gradient_group = 2;
  c.chunk_elements = 4 * kTileElements;
  const Outcome alone = train_rank(c);
  for (const Lane lane : {Lane::gather_between_hosts, Lane::exchange_between_hosts}) {
    uint32_t others = 0;
    for (const uint64_t index : {2u, 11u, 14u}) {
      CommFaults wrong({{CommFaultKind::corrupt, lane, 2, index}});
      for (const Outcome& one : train_together(c, {4, 2}, &wrong))
        others += one.has_numbers_of(alone) ? 0 : 1;
    }
    EXPECT_GT(others, 0u) << name_of(lane);
  }
}

// What fails in one group ends all ranks, or nobody needed what it would have brought.
TEST(Hosts, EndTogetherWhateverOperationFails) {
  constexpr HostLayout kHosts{4, 2};
  uint64_t failed = 0;
  for (Case c : cases()) {
    c.gradient_group = 2;
    c.chunk_elements = 4 * kTileElements;
    for (const Lane lane :
         {Lane::gather, Lane::exchange, Lane::gather_between_hosts, Lane::exchange_between_hosts}) {
      for (const uint64_t index : {0u, 7u, 12u}) {
        if (testing::kSanitized && index == 7) continue;
        SCOPED_TRACE(fmt::format("operation {} of lane {}, {}", index, name_of(lane), text_of(c, kHosts)));
        CommFaults faults({{CommFaultKind::fail, lane, 3, index}});
        ThreadWorld world({.ranks = kHosts.ranks, .hosts = kHosts.hosts, .hook = &faults});
        uint32_t ended = 0;
        for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
               Case mine = c;
               mine.ranks = &rank;
               mine.engine = io::EngineKind::threads;
               train_rank(mine);
             }))
          ended += failure.empty() ? 0 : 1;
        EXPECT_TRUE(ended == 0 || ended == kHosts.ranks) << ended;
        failed += ended > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(failed, cases().size() * 4);
}

// Every byte is known before, and is that of the formulas where shares are even: per host and step F S
// (n-1)/n of parameters, A 4 Psi (n-1)/n of gradients in groups, A H p Psi (N-H)/N without.
TEST(Hosts, MoveBetweenThemWhatTheFormulasSay) {
  for (Case c : cases()) {
    c.accumulation = 12;
    for (const uint32_t group : std::span(kGroups).first<kGroupCount>()) {
      c.gradient_group = group;
      c.gradient_bits = group == 1 ? 0 : group == 2 ? 8 : 4;
      c.parameter_bits = c.type == DataType::bf16 && group != 1 ? 8 : 0;
      for (const HostLayout& hosts : std::span(kLayouts).first<kLayoutCount>()) {
        SCOPED_TRACE(text_of(c, hosts));
        const std::vector<Outcome> together = train_together(c, hosts);
        uint64_t fetched = 0;
        for (uint32_t r = 0; r < hosts.ranks; ++r) {
          DryCommunicator dry(r, testing::places_on(hosts));
          Case planned = c;
          planned.ranks = &dry;
          planned.dry = true;
          const OffloadCounters expected = train_rank(planned).moved;
          for (const CounterEntry& link : kLinks) {
            EXPECT_EQ(together[r].moved.*link.value, expected.*link.value) << r << ": " << link.key;
            if (link.bound == nullptr) continue;
            EXPECT_GE(together[r].moved.*link.value, kSteps * (together[r].bound.*link.bound))
                << r << ": " << link.key;
          }
          EXPECT_EQ(together[r].moved.host_exchange_in_bytes,
                    kSteps * together[r].bound.host_exchange_in_bytes);
          EXPECT_EQ(together[r].moved.host_exchange_out_bytes,
                    kSteps * together[r].bound.host_exchange_out_bytes);
          EXPECT_EQ(together[r].moved.exchange_in_bytes, kSteps * together[r].bound.exchange_in_bytes);
          EXPECT_EQ(together[r].moved.exchange_out_bytes, kSteps * together[r].bound.exchange_out_bytes);
          fetched += together[r].moved.gather_in_bytes;
        }
        uint64_t in = 0, out = 0, gathered_in = 0, gathered_out = 0;
        for (const Outcome& one : together) {
          in += one.moved.host_exchange_in_bytes, out += one.moved.host_exchange_out_bytes;
          gathered_in += one.moved.host_gather_in_bytes, gathered_out += one.moved.host_gather_out_bytes;
        }
        EXPECT_EQ(in, out);
        EXPECT_EQ(gathered_in, gathered_out);
        // All ranks gather (N - 1) S of a chunk together, and the hosts n - 1 times S, or 66 bytes of codes
        // for 64 parameters of it.
        if (c.parameter_bits == 0) {
          EXPECT_EQ(gathered_in * (hosts.ranks - 1), fetched * (hosts.hosts - 1));
        } else {
          const uint64_t as_parameters = gathered_in / 66 * 128;
          EXPECT_EQ(gathered_in % 66, 0u);
          EXPECT_EQ(as_parameters * (hosts.ranks - 1),
                    (fetched - gathered_in + as_parameters) * (hosts.hosts - 1));
        }
      }
    }
  }
}

// Sub-groups of two of four hosts: with every fetch parameters cross within them, and once for each update
// between them.
TEST(Hosts, OfASubGroupHoldTheParametersOnce) {
  for (Case c : cases()) {
    if (c.parameters == Placement::none && !c.divided) continue;  // nothing is fetched
    c.accumulation = 4;
    c.chunk_elements = 2 * kTileElements;
    c.parameter_bits = c.type == DataType::bf16 ? 8 : 0;
    c.host_budget = [](const MemoryPlan& plan) { return 4 * plan.host_bytes; };
    const Outcome alone = train_rank(c);
    for (const HostLayout& hosts : {HostLayout{4, 4}, HostLayout{8, 4}}) {
      if (testing::kSanitized && hosts.ranks != 4) continue;
      uint64_t crossed[3] = {};
      for (const uint32_t sub_group : {1u, 2u, 4u}) {
        SCOPED_TRACE(fmt::format("{}, sub-groups of {}", text_of(c, hosts), sub_group));
        c.sub_group_hosts = sub_group;
        const std::vector<Outcome> together = train_together(c, hosts);
        for (uint32_t r = 0; r < hosts.ranks; ++r) {
          EXPECT_TRUE(together[r].has_numbers_of(alone)) << r;
          crossed[sub_group / 2] += together[r].in_last_step.host_gather_in_bytes;
          DryCommunicator dry(r, testing::places_on(hosts));
          Case planned = c;
          planned.ranks = &dry;
          planned.dry = true;
          const Outcome expected = train_rank(planned);
          for (const CounterEntry& link : kLinks) {
            EXPECT_EQ(together[r].moved.*link.value, expected.moved.*link.value) << r << ": " << link.key;
            if (link.bound == nullptr) continue;
            EXPECT_GE(together[r].moved.*link.value, kSteps * (together[r].bound.*link.bound)) << link.key;
          }
        }
      }
      // A fetch crosses to 0, 1 or 3 other hosts once the first one has crossed to all.
      EXPECT_EQ(3 * (crossed[1] - crossed[0]), crossed[2] - crossed[0]);
      EXPECT_GT(crossed[1], crossed[0]);
    }
  }
}

// With room for it a share crosses once for each update, however often its chunk is fetched.
TEST(Hosts, KeepWhatHasCrossed) {
  for (Case c : cases()) {
    if (c.parameters == Placement::none && !c.divided) continue;  // nothing is fetched
    c.accumulation = 4;
    c.chunk_elements = 2 * kTileElements;
    for (const UpdateMode mode : {UpdateMode::after_backward, UpdateMode::next_forward}) {
      if (mode == UpdateMode::next_forward && c.states == Placement::none) continue;
      c.mode = mode;
      for (const HostLayout& hosts : {HostLayout{4, 2}, HostLayout{3, 3}, HostLayout{6, 3}}) {
        if (testing::kSanitized && hosts.ranks != 4) continue;
        SCOPED_TRACE(fmt::format("{}, {}", text_of(c, hosts), name_of(mode)));
        const Outcome alone = train_rank(c);
        const std::vector<Outcome> crossing = train_together(c, hosts);
        Case roomy = c;
        roomy.host_budget = [](const MemoryPlan& plan) { return 4 * plan.host_bytes; };
        const std::vector<Outcome> kept = train_together(roomy, hosts);
        uint64_t crossed = 0, crossed_again = 0;
        for (uint32_t r = 0; r < hosts.ranks; ++r) {
          EXPECT_TRUE(kept[r].has_numbers_of(alone)) << r;
          EXPECT_GE(kept[r].moved.host_gather_in_bytes, kSteps * kept[r].bound.host_gather_in_bytes);
          EXPECT_GE(kept[r].moved.h2d_bytes, kSteps * kept[r].bound.h2d_bytes);
          crossed += kept[r].in_last_step.host_gather_in_bytes;
          crossed_again += crossing[r].in_last_step.host_gather_in_bytes;
          DryCommunicator dry(r, testing::places_on(hosts));
          Case planned = roomy;
          planned.ranks = &dry;
          planned.dry = true;
          const OffloadCounters expected = train_rank(planned).moved;
          for (const CounterEntry& link : kLinks)
            EXPECT_EQ(kept[r].moved.*link.value, expected.*link.value) << r << ": " << link.key;
        }
        const ScratchFolder folder;
        const ToyRig rig(c, {folder.path()});
        uint64_t all = 0;
        for (uint32_t i = 0; i < rig.space.chunk_count(); ++i) all += rig.space.param_bytes(ChunkId{i});
        EXPECT_EQ(crossed, (hosts.hosts - 1) * all);
        EXPECT_GT(crossed_again, crossed);
      }
    }
  }
}

TEST(Hosts, SendOneSumOfAGroupForTheGradientsOfItsRanks) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu, .type = DataType::bf16, .accumulation = 16};
  c.chunk_elements = 8 * kTileElements;
  const auto crossing = [&](uint32_t group) {
    c.gradient_group = group;
    uint64_t bytes = 0;
    for (const Outcome& one : train_together(c, {8, 2})) bytes += one.moved.host_exchange_in_bytes;
    return bytes;
  };
  const uint64_t flat = crossing(1);  // 8 gradients of 2 bytes in a round
  EXPECT_EQ(crossing(2), flat);       // 4 sums of 4 bytes
  EXPECT_EQ(crossing(4), flat / 2);   // 2 sums of 4 bytes
}

}  // namespace
}  // namespace terrace::hosts_test
