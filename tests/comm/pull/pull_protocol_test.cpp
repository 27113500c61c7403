// What the pulling of parameters and gradients promises, in every interleaving of small runs: ranks that use
// other chunks, hand over other gradients in other orders and evaluate for other times neither wait for each
// other for good, nor read or add anything else than one rank would. And each rule of the protocol is needed:
// without it something is found to be wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "comm/pull/protocol_model.h"

namespace terrace::pull_model {
namespace {

using enum ActionKind;

// What a rank does in a step: uses and hand-overs of each of its micro-batches, and how much it evaluates
// before.
struct RankStep {
  std::vector<std::vector<uint32_t>> given;  // by round: chunks, in the order of their hand-over
  bool evaluates = false;
  bool prefetches = false;  // a chunk that it may not use
  bool reads = true;        // what it hands gradients over of
  bool meets = false;       // the others of the program within the last micro-batch
};

void append(std::vector<Action>& program, const RankStep& step, const Scenario& scenario, uint32_t rank) {
  if (step.evaluates) program.insert(program.end(), {{read, 0, 0}, {read, 1, 0}});
  for (uint32_t round = 0; round < step.given.size(); ++round) {
    const uint32_t micro_batch = round * scenario.ranks + rank;
    const std::vector<uint32_t>& given = step.given[round];
    for (size_t g = 0; g < given.size(); ++g) {
      if (step.reads) program.push_back({read, given[g], micro_batch});
      program.push_back({give, given[g], micro_batch});
      if (step.meets && g == 0 && round + 1 == step.given.size()) program.push_back({barrier, 0, 0});
    }
    if (step.meets && given.empty() && round + 1 == step.given.size()) program.push_back({barrier, 0, 0});
    if (step.prefetches && round == 0) program.push_back({prefetch, (rank + 1) % kChunks, 0});
    program.push_back({end, 0, micro_batch});
  }
  program.push_back({update, 0, 0});
}

// The rounds in which the rank has a micro-batch.
uint32_t rounds_of(const Scenario& scenario, uint32_t rank) {
  return (scenario.micro_batches + scenario.ranks - 1 - rank) / scenario.ranks;
}

// Counts a number in the orders of hand-overs: each digit is one order.
RankStep step_of(const Scenario& scenario, uint32_t rank, uint64_t& number) {
  RankStep step;
  const std::vector<std::vector<uint32_t>> all = orders();
  for (uint32_t round = 0; round < rounds_of(scenario, rank); ++round) {
    step.given.push_back(all[number % all.size()]);
    number /= all.size();
  }
  return step;
}

struct Family {
  uint32_t ranks = 2;
  uint32_t micro_batches = 2;
  uint32_t steps = 1;
  uint32_t staging = 1;
  uint64_t stride = 1;  // of the scenarios of the family, so many are one that is explored
};

// Every way in which the ranks of a family differ, and then evaluations, fetches ahead and a meeting that the
// program makes, by the number of the scenario.
std::vector<Scenario> scenarios_of(const Family& family) {
  std::vector<Scenario> all;
  uint64_t count = 1;
  for (uint32_t m = 0; m < family.micro_batches * family.steps; ++m) count *= orders().size();
  for (uint64_t n = 0; n < count; n += family.stride) {
    Scenario scenario{family.ranks, family.micro_batches, family.staging, {}};
    uint64_t number = n;
    scenario.programs.resize(family.ranks);
    for (uint32_t step = 0; step < family.steps; ++step) {
      for (uint32_t r = 0; r < family.ranks; ++r) {
        RankStep of_rank = step_of(scenario, r, number);
        of_rank.evaluates = step > 0 && (n + r) % 2 == 0;
        of_rank.prefetches = (n / 2 + r + step) % 2 == 0;
        of_rank.reads = n % 5 != 2;
        of_rank.meets = n % 3 == 0 && family.micro_batches >= family.ranks;
        append(scenario.programs[r], of_rank, scenario, r);
      }
    }
    all.push_back(std::move(scenario));
  }
  return all;
}

std::string text_of(const Scenario& scenario) {
  std::string text = fmt::format("{} micro-batches, staging of {}", scenario.micro_batches, scenario.staging);
  constexpr std::string_view kWords[] = {"read", "prefetch", "give", "end", "meet", "update"};
  for (const std::vector<Action>& program : scenario.programs) {
    text += "\n  ";
    for (const Action& a : program)
      text += fmt::format(" {}({},{})", kWords[static_cast<size_t>(a.kind)], a.chunk, a.micro_batch);
  }
  return text;
}

constexpr Family kFamilies[] = {
    {.ranks = 2, .micro_batches = 3},
    {.ranks = 2, .micro_batches = 4, .stride = 7},
    {.ranks = 2, .micro_batches = 2, .steps = 2, .stride = 3},
    {.ranks = 2, .micro_batches = 2, .steps = 2, .staging = 2, .stride = 13},
    {.ranks = 3, .micro_batches = 3, .stride = 14},
    {.ranks = 3, .micro_batches = 4, .stride = 97},
    {.ranks = 3, .micro_batches = 2, .steps = 2, .stride = 83},
};

TEST(PullProtocol, HoldsInEveryInterleaving) {
  uint64_t states = 0, scenarios = 0;
  for (const Family& family : kFamilies) {
    for (const Scenario& scenario : scenarios_of(family)) {
      const Exploration found = explore(scenario);
      ASSERT_EQ(found.wrong, "") << text_of(scenario);
      states += found.states;
      ++scenarios;
    }
  }
  std::cout << scenarios << " scenarios, " << states << " states\n";
  EXPECT_GT(scenarios, 400u);
  EXPECT_GT(states, 500'000u);
}

// A rule that is left out, and what is found of it.
struct Mutation {
  const char* name;
  Break what;
  std::vector<std::string> wrong;  // one of these
};
std::ostream& operator<<(std::ostream& out, const Mutation& mutation) {
  return out << mutation.name;
}

class PullMutation : public ::testing::TestWithParam<Mutation> {};

TEST_P(PullMutation, IsFound) {
  std::string wrong;
  uint64_t states = 0;
  for (const Family& family : kFamilies) {
    for (const Scenario& scenario : scenarios_of(family)) {
      const Exploration found = explore(scenario, GetParam().what);
      states += found.states;
      wrong = found.wrong;
      if (!wrong.empty()) break;
    }
    if (!wrong.empty()) break;
  }
  std::cout << states << " states until: " << wrong << "\n";
  EXPECT_NE(std::ranges::find(GetParam().wrong, wrong), GetParam().wrong.end()) << wrong;
}

const std::string kHangs = "nothing moves any more", kStale = "a stale version is read";
const std::string kOverwritten = "a share is overwritten before its last reader";
const std::string kOverwrittenNow = "a share is overwritten while it is read";
const std::string kLate = "a version is read that comes too late";
const std::string kDisorder = "a gradient is added behind that of a later micro-batch";
const std::string kLost = "an update is without a gradient that was handed over";

INSTANTIATE_TEST_SUITE_P(
    Rules, PullMutation,
    ::testing::Values(
        Mutation{"an_owner_adds_in_its_own_calls_alone", Break::adds_on_step_thread, {kHangs}},
        Mutation{"an_owner_writes_when_it_is_done_itself",
                 Break::overwrites_when_done,
                 {kOverwritten, kOverwrittenNow, kLate}},
        Mutation{"any_version_is_read", Break::reads_any_version, {kStale, kLate}},
        Mutation{"reads_are_open_when_an_update_begins", Break::leaves_reads_open, {kOverwritten, kLate}},
        Mutation{"gradients_are_added_as_they_come", Break::adds_as_they_come, {kDisorder}},
        Mutation{"absence_is_declared_before_the_last_use", Break::declares_absent_early, {kLost, kHangs}},
        Mutation{"all_is_absent_after_one_micro_batch", Break::declares_all_absent, {kLost, kHangs}},
        Mutation{"a_slot_is_free_when_its_owner_is_told",
                 Break::frees_slot_when_told,
                 {"a gradient is taken out of a slot that holds another one"}},
        Mutation{"an_update_begins_when_all_have_come", Break::updates_before_all_added, {kLost}},
        Mutation{"gradients_of_the_next_step_are_added_beside_an_update",
                 Break::adds_before_own_update,
                 {"a gradient of the next step is added while this one's are read"}},
        Mutation{"messages_overtake_each_other", Break::loses_order_of_messages, {kLost, kHangs}}),
    [](const auto& test) { return std::string(test.param.name); });

// Where micro-batches of a step are open together, a rank may wait with its second for another rank's first,
// which that hands over behind one that waits for this rank: so pulled exchanges are refused there.
TEST(PullProtocol, NeedsMicroBatchesOneAfterTheOther) {
  Scenario together{2, 4, 1, {}};
  together.programs = {{{give, 0, 0}, {give, 0, 2}, {give, 1, 0}, {end, 0, 0}, {end, 0, 2}, {update, 0, 0}},
                       {{give, 1, 1}, {give, 0, 1}, {end, 0, 1}, {end, 0, 3}, {update, 0, 0}}};
  EXPECT_EQ(explore(together).wrong, kHangs);
}

}  // namespace
}  // namespace terrace::pull_model
