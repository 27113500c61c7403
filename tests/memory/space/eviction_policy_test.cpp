// Policies: small decisions by hand, a naive model under random operations, and Belady's rule against the
// optimum found by exhaustive search.
#include <terrace/memory/space/eviction_policy.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "support/enum_values.h"

namespace terrace::eviction_policy_test {
namespace {

std::vector<ChunkId> chunks_of(std::vector<uint32_t> ids) {
  std::vector<ChunkId> chunks;
  for (uint32_t id : ids) chunks.push_back(ChunkId{id});
  return chunks;
}

// A step of uses of one chunk each.
std::vector<ScheduledUse> step_of(const std::vector<uint32_t>& order) {
  std::vector<ScheduledUse> uses;
  for (size_t i = 0; i < order.size(); ++i) {
    uses.push_back({"op" + std::to_string(i), UseKind::forward, {ChunkId{order[i]}}});
  }
  return uses;
}

struct Outcome {
  uint32_t hit_count = 0;
  uint32_t miss_count = 0;
  std::vector<ChunkId> victims;
};

// A full tier of equal, clean chunks under one policy, through `cycle_count` steps. A chunk in use cannot
// leave.
Outcome simulate(PolicyKind kind, const std::vector<ScheduledUse>& uses, uint32_t chunk_count,
                 uint32_t capacity, uint32_t cycle_count, const Schedule& schedule) {
  const auto policy = make_policy(kind, chunk_count);
  std::vector<bool> resident(chunk_count, false);
  Outcome outcome;
  for (uint32_t cycle = 0; cycle < cycle_count; ++cycle) {
    for (uint32_t position = 0; position < uses.size(); ++position) {
      const std::vector<ChunkId>& needed = uses[position].chunks;
      for (ChunkId chunk : needed) {
        if (resident[index_of(chunk)]) {
          ++outcome.hit_count;
          continue;
        }
        ++outcome.miss_count;
        if (static_cast<uint32_t>(std::count(resident.begin(), resident.end(), true)) == capacity) {
          std::vector<ChunkId> candidates;
          for (uint32_t c = 0; c < chunk_count; ++c) {
            const bool in_use = std::find(needed.begin(), needed.end(), ChunkId{c}) != needed.end();
            if (resident[c] && !in_use) candidates.push_back(ChunkId{c});
          }
          const ChunkId victim = policy->choose_victim(candidates, {schedule, position});
          EXPECT_TRUE(std::find(candidates.begin(), candidates.end(), victim) != candidates.end());
          outcome.victims.push_back(victim);
          resident[index_of(victim)] = false;
        }
        resident[index_of(chunk)] = true;
      }
      for (ChunkId chunk : needed) policy->on_use(chunk);
    }
  }
  return outcome;
}

Outcome simulate(PolicyKind kind, const std::vector<ScheduledUse>& uses, uint32_t chunk_count,
                 uint32_t capacity, uint32_t cycle_count) {
  return simulate(kind, uses, chunk_count, capacity, cycle_count, Schedule(uses, chunk_count));
}

// The fewest misses that any sequence of evictions can have: for every set of resident chunks the least
// number of misses that leads to it, use by use.
uint32_t least_misses(const std::vector<ScheduledUse>& uses, uint32_t chunk_count, uint32_t capacity,
                      uint32_t cycle_count) {
  constexpr uint32_t kUnreached = ~0u;
  std::vector<uint32_t> least(size_t{1} << chunk_count, kUnreached);
  least[0] = 0;
  for (uint32_t i = 0; i < cycle_count * uses.size(); ++i) {
    uint32_t needed = 0;
    for (ChunkId chunk : uses[i % uses.size()].chunks) needed |= 1u << index_of(chunk);
    std::vector<uint32_t> next(least.size(), kUnreached);
    for (uint32_t before = 0; before < least.size(); ++before) {
      if (least[before] == kUnreached) continue;
      const uint32_t misses = least[before] + static_cast<uint32_t>(std::popcount(needed & ~before));
      for (uint32_t after = 0; after < least.size(); ++after) {
        if ((after & needed) != needed || (after & ~(before | needed)) != 0) continue;
        if (static_cast<uint32_t>(std::popcount(after)) <= capacity)
          next[after] = std::min(next[after], misses);
      }
    }
    least = next;
  }
  return *std::min_element(least.begin(), least.end());
}

std::vector<uint32_t> random_order(std::mt19937& random, uint32_t chunk_count) {
  std::vector<uint32_t> order(1 + random() % 10);
  for (uint32_t& chunk : order) chunk = random() % chunk_count;
  return order;
}

TEST(OptPolicy, HasTheFewestMissesPossibleOnEverySmallSchedule) {
  uint32_t better_than_gemini = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t chunk_count = 3 + random() % 4;
    const uint32_t capacity = 2 + random() % 2;
    const auto uses = step_of(random_order(random, chunk_count));
    const uint32_t least = least_misses(uses, chunk_count, capacity, 4);
    EXPECT_EQ(simulate(PolicyKind::opt, uses, chunk_count, capacity, 4).miss_count, least);
    const uint32_t gemini = simulate(PolicyKind::gemini, uses, chunk_count, capacity, 4).miss_count;
    EXPECT_GE(gemini, least);
    if (gemini > least) ++better_than_gemini;
  }
  EXPECT_GT(better_than_gemini, 50u);  // the instances are hard enough to tell policies apart
}

TEST(OptPolicy, HasTheFewestMissesPossibleWhenUsesNeedSeveralChunksTogether) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t chunk_count = 4 + random() % 3;
    auto uses = step_of(random_order(random, chunk_count));
    for (ScheduledUse& use : uses) {
      const ChunkId other{static_cast<uint32_t>(random() % chunk_count)};
      if (other > use.chunks[0]) use.chunks.push_back(other);
      if (other < use.chunks[0]) use.chunks.insert(use.chunks.begin(), other);
    }
    EXPECT_EQ(simulate(PolicyKind::opt, uses, chunk_count, 3, 4).miss_count,
              least_misses(uses, chunk_count, 3, 4));
  }
}

TEST(OptPolicy, DecidesOtherwiseWhenTheScheduleIsShuffled) {
  auto uses = step_of({0, 1, 2, 3, 4, 5, 4, 2, 0, 1, 3, 5});
  const Schedule truth(uses, 6);
  auto shuffled = uses;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  const Schedule lie(shuffled, 6);
  const Outcome with_truth = simulate(PolicyKind::opt, uses, 6, 3, 4, truth);
  const Outcome with_lie = simulate(PolicyKind::opt, uses, 6, 3, 4, lie);
  EXPECT_NE(with_truth.victims, with_lie.victims);
  EXPECT_GT(with_lie.miss_count, with_truth.miss_count);
}

TEST(OptPolicy, BreaksTiesByTheLowestChunk) {
  const Schedule schedule(
      {{"a", UseKind::forward, chunks_of({0})}, {"b", UseKind::forward, chunks_of({1, 2, 3})}}, 6);
  const auto policy = make_policy(PolicyKind::opt, 6);
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 2, 3}), {schedule, 0}), ChunkId{1});
  EXPECT_EQ(policy->choose_victim(chunks_of({2, 3}), {schedule, 0}), ChunkId{2});
}

TEST(OptPolicy, EvictsWhatTheScheduleNeverNamesFirst) {
  const Schedule schedule(step_of({0, 1, 2}), 6);
  const auto policy = make_policy(PolicyKind::opt, 6);
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 2, 4, 5}), {schedule, 0}), ChunkId{4});
}

TEST(OptPolicy, LooksIntoTheNextStep) {
  const Schedule schedule(step_of({0, 1, 2}), 3);
  const auto policy = make_policy(PolicyKind::opt, 3);
  // During the use of 2, the next step's 0 comes before its 1; at the start of a step 2 is the last to come.
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 1}), {schedule, 2}), ChunkId{1});
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 1, 2}), {schedule, kNever}), ChunkId{2});
}

TEST(OptPolicy, IsLeastRecentlyUsedWithoutASchedule) {
  const Schedule unknown;
  const auto policy = make_policy(PolicyKind::opt, 4);
  for (const uint32_t chunk : {2u, 0u, 1u, 2u}) policy->on_use(ChunkId{chunk});
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 1, 2}), {unknown, kNever}), ChunkId{0});
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 2}), {unknown, kNever}), ChunkId{1});
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 1, 3}), {unknown, kNever}), ChunkId{3}) << "never used";
}

TEST(OptPolicy, NeverMissesMoreOftenThanAnyOtherPolicy) {
  std::vector<uint32_t> worse(policy_kinds().size(), 0);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t chunk_count = 4 + random() % 20;
    const uint32_t capacity = 2 + random() % (chunk_count - 2);
    std::vector<uint32_t> order(1 + random() % 60);
    for (uint32_t& chunk : order) chunk = random() % chunk_count;
    const auto uses = step_of(order);
    const uint32_t least = simulate(PolicyKind::opt, uses, chunk_count, capacity, 4).miss_count;
    for (const PolicyKind kind : policy_kinds()) {
      const uint32_t misses = simulate(kind, uses, chunk_count, capacity, 4).miss_count;
      EXPECT_GE(misses, least) << name_of(kind);
      if (misses > least) ++worse[static_cast<size_t>(kind)];
    }
  }
  for (const PolicyKind kind : policy_kinds()) {
    if (kind == PolicyKind::opt) continue;
    if (kind == PolicyKind::patrickstar) {  // the same rule, where nothing is renewed
      EXPECT_EQ(worse[static_cast<size_t>(kind)], 0u);
      continue;
    }
    EXPECT_GT(worse[static_cast<size_t>(kind)], 100u)
        << "the schedules do not tell " << name_of(kind) << " apart";
  }
}

TEST(EvictionPolicy, NamesItself) {
  EXPECT_EQ(policy_kinds().size(), testing::enumerator_count<PolicyKind>());
  for (const PolicyKind kind : policy_kinds()) {
    EXPECT_EQ(make_policy(kind, 1)->kind(), kind);
    EXPECT_EQ(policy_from_name(name_of(kind)), kind);
  }
  EXPECT_EQ(name_of(PolicyKind::opt), "opt");
  EXPECT_EQ(name_of(PolicyKind::gemini), "gemini");
  EXPECT_EQ(name_of(PolicyKind::patrickstar), "patrickstar");
  EXPECT_EQ(policy_from_name("random"), std::nullopt);
}

TEST(EvictionPolicyDeathTest, AssertsThatThereIsACandidate) {
  const Schedule schedule;
  for (const PolicyKind kind : policy_kinds()) {
    EXPECT_DEATH(make_policy(kind, 1)->choose_victim({}, {schedule, kNever}), "without candidates");
  }
  EXPECT_DEATH(make_policy(PolicyKind::opt, 1)->on_use(ChunkId{1}), "no chunk 1");
}

TEST(GeminiPolicy, LooksNoFurtherThanTheStepsEnd) {
  const Schedule schedule(step_of({0, 1, 2, 3}), 4);
  const auto policy = make_policy(PolicyKind::gemini, 4);
  // Chunk 0 comes next, in the next step; to this rule 0 and 2 are alike there.
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 2}), {schedule, 3}), ChunkId{0});
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 3}), {schedule, 0}), ChunkId{3});
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 3}), {Schedule(), kNever}), ChunkId{1}) << "the first step";
}

TEST(PatrickStarPolicy, CountsOnCopiesThatTheUpdateMakesStale) {
  const Schedule schedule(step_of({0, 1, 2, 1, 0}), 3, {true, false, true});
  const auto policy = make_policy(PolicyKind::patrickstar, 3);
  EXPECT_EQ(policy->choose_victim(chunks_of({0, 1}), {schedule, 4}), ChunkId{1});
  EXPECT_EQ(make_policy(PolicyKind::opt, 3)->choose_victim(chunks_of({0, 1}), {schedule, 4}), ChunkId{0});
  EXPECT_EQ(policy->choose_victim(chunks_of({1, 2}), {Schedule(), kNever}), ChunkId{1}) << "the first step";
}

// The model: every use in a list, searched from its end.
ChunkId naive_victim(PolicyKind kind, const std::vector<ChunkId>& candidates,
                     const std::vector<ChunkId>& used, const std::vector<ScheduledUse>& uses,
                     uint32_t position) {
  ChunkId victim = candidates.front();
  size_t best = 0;
  for (ChunkId candidate : candidates) {
    size_t age = 0;
    const bool is_gemini = kind == PolicyKind::gemini;
    if (is_gemini || kind == PolicyKind::patrickstar || (kind == PolicyKind::opt && !uses.empty())) {
      const size_t first = position == kNever ? 0 : position + 1;
      const size_t end = is_gemini ? uses.size() - std::min(first, uses.size()) : uses.size();
      while (age < end) {
        const auto& chunks = uses[(first + age) % uses.size()].chunks;
        if (std::find(chunks.begin(), chunks.end(), candidate) != chunks.end()) break;
        ++age;
      }
    } else {
      while (age < used.size() && used[used.size() - 1 - age] != candidate) ++age;
    }
    if (age + 1 > best) {
      best = age + 1;
      victim = candidate;
    }
  }
  return victim;
}

TEST(EvictionPolicy, MatchesTheNaiveModelUnderRandomOperations) {
  for (const PolicyKind kind : policy_kinds()) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(std::string(name_of(kind)) + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      const auto policy = make_policy(kind, 8);
      const auto uses = seed % 5 == 0 ? std::vector<ScheduledUse>() : step_of(random_order(random, 8));
      const Schedule schedule(uses, 8);
      std::vector<ChunkId> used;
      for (int operation = 0; operation < 90; ++operation) {
        if (random() % 2 == 0) {
          used.push_back(ChunkId{static_cast<uint32_t>(random() % 8)});
          policy->on_use(used.back());
          continue;
        }
        std::vector<ChunkId> candidates;
        for (uint32_t c = 0; c < 8; ++c) {
          if (random() % 2 == 0 || c == 7) candidates.push_back(ChunkId{c});
        }
        const uint32_t at = static_cast<uint32_t>(random() % (uses.size() + 1));
        const uint32_t position = at == uses.size() ? kNever : at;
        ASSERT_EQ(policy->choose_victim(candidates, {schedule, position}),
                  naive_victim(kind, candidates, used, uses, position));
      }
    }
  }
}

}  // namespace
}  // namespace terrace::eviction_policy_test
