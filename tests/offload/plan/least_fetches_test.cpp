// The least cost of fetches, against every plan there is of small schedules.
#include <terrace/offload/plan/least_fetches.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

namespace terrace::least_fetches_test {
namespace {

constexpr uint32_t kChunks = 4;
constexpr uint32_t kSlots = 3;

struct Instance {
  Schedule schedule;
  std::vector<uint64_t> bytes;
  std::vector<AfterStep> after;
};

Instance instance(uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<ScheduledUse> uses(3 + random() % 4);
  for (ScheduledUse& use : uses) {
    for (uint32_t c = 0; c < kChunks; ++c) {
      if (random() % 3 == 0 && use.chunks.size() < 2) use.chunks.push_back(ChunkId{c});
    }
    use.occupied_slots = random() % 2;
  }
  Instance made{Schedule(uses, kChunks), {}, {}};
  for (uint32_t c = 0; c < kChunks; ++c) {
    made.bytes.push_back(1 + random() % 9);
    made.after.push_back(static_cast<AfterStep>(random() % 3));
  }
  return made;
}

// Goes through the uses of `steps` steps with every choice of what stays after each.
struct EveryPlan {
  const Instance& made;
  uint32_t steps;
  uint64_t least = UINT64_MAX;

  void from(uint32_t position, uint32_t held, uint64_t cost) {
    if (position == made.schedule.size() * steps) {
      least = std::min(least, cost);
      return;
    }
    const uint32_t in_step = position % made.schedule.size();
    if (in_step == 0) {
      uint32_t kept = 0, free = 0;
      for (uint32_t c = 0; c < kChunks; ++c) {
        if (made.after[c] == AfterStep::made || (made.after[c] == AfterStep::kept && position == 0))
          free |= 1u << c;
        if (made.after[c] == AfterStep::kept) kept |= 1u << c;
      }
      held = (held & kept) | free;
    }
    const ScheduledUse& use = made.schedule.use(in_step);
    uint32_t used = 0;
    for (const ChunkId chunk : use.chunks) {
      used |= 1u << index_of(chunk);
      if ((held >> index_of(chunk) & 1) == 0) cost += made.bytes[index_of(chunk)];
    }
    const auto room = static_cast<int>(kSlots - use.occupied_slots);
    for (uint32_t stays = 0; stays < 1u << kChunks; ++stays) {
      const bool has_used = (stays & used) == used && (stays & ~(held | used)) == 0;
      if (has_used && std::popcount(stays) <= room) from(position + 1, stays, cost);
    }
  }
};

TEST(LeastFetches, CostWhatTheBestOfAllPlansDoes) {
  int by_size = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    const Instance made = instance(seed);
    const auto after = [&](ChunkId chunk) { return made.after[index_of(chunk)]; };
    const auto cost = [&](ChunkId chunk, bool) { return made.bytes[index_of(chunk)]; };
    const auto one = [](ChunkId, bool) -> uint64_t { return 1; };
    for (const uint32_t steps : {1u, 2u}) {
      EveryPlan plans{made, steps};
      plans.from(0, 0, 0);
      const uint64_t least = least_fetch_cost(made.schedule, kSlots, kChunks, steps, {after, cost});
      EXPECT_EQ(least, plans.least / steps) << "seed " << seed << ", " << steps << " steps";
      if (least > 0 && least != least_fetch_cost(made.schedule, kSlots, kChunks, steps, {after, one}))
        ++by_size;
    }
  }
  EXPECT_GT(by_size, 50) << "sizes hardly ever matter";
}

TEST(LeastFetches, CostMoreForTheFirstUseOfAStepWhereTheCallerSaysSo) {
  const Schedule schedule(
      {{"a", UseKind::forward, {ChunkId{0}}, 0}, {"b", UseKind::forward, {ChunkId{0}}, 0}}, 1);
  const auto after = [](ChunkId) { return AfterStep::renewed; };
  const auto cost = [](ChunkId, bool is_first) -> uint64_t { return is_first ? 5 : 3; };
  EXPECT_EQ(least_fetch_cost(schedule, 1, 1, 1, {after, cost}), 5u);
  EXPECT_EQ(least_fetch_cost(Schedule(), 1, 1, 1, {after, cost}), 0u);
}

}  // namespace
}  // namespace terrace::least_fetches_test
