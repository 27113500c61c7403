// FetchPlan drives a tier of slots through steps: whatever the depth, it moves what Belady's rule moves.
#include <terrace/offload/device/fetch_plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace terrace::fetch_plan_test {
namespace {

struct Step {
  std::vector<ScheduledUse> uses;
  uint32_t chunk_count = 0;
  uint32_t slots = 0;
  std::vector<bool> renewed;
};

struct Moved {
  uint32_t ahead = 0;   // fetches that began before their use
  uint32_t demand = 0;  // and with it
  uint32_t lead = 0;    // by how many uses they did, all together
  uint32_t all() const { return ahead + demand; }
};

// Steps of a tier, of which the last is counted. What changes while a use computes is what the product
// changes, in its order: demand, then the gradients' places, then fetches ahead. `depth` 0: on demand only.
class Tier {
 public:
  Tier(const Step& step, uint32_t depth)
      : step_(step),
        schedule_(step.uses, step.chunk_count, step.renewed),
        depth_(depth),
        ahead_(step.chunk_count) {}

  Moved run(uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) {
      moved_ = {};
      fetch_ahead(kNever, 0, {});
      for (uint32_t p = 0; p < step_.uses.size(); ++p) use(p);
      std::erase_if(here_, [&](ChunkId chunk) { return step_.renewed[index_of(chunk)]; });
    }
    return moved_;
  }

 private:
  void use(uint32_t position) {
    const ScheduledUse& use = step_.uses[position];
    for (const ChunkId chunk : use.chunks) {
      if (here_.contains(chunk)) continue;
      if (here_.size() >= step_.slots) evict_farthest(position);
      here_.insert(chunk);
      ++moved_.demand;
    }
    while (here_.size() > step_.slots - use.occupied_slots) evict_farthest(position);
    fetch_ahead(position, use.occupied_slots, use.chunks);
    EXPECT_LE(here_.size() + use.occupied_slots, step_.slots) << "at use " << position;
  }

  void evict_farthest(uint32_t position) {
    std::vector<ChunkId> candidates;
    for (const ChunkId chunk : here_) {
      const auto& pinned = step_.uses[position].chunks;
      if (!std::binary_search(pinned.begin(), pinned.end(), chunk)) candidates.push_back(chunk);
    }
    ASSERT_FALSE(candidates.empty());
    here_.erase(*std::ranges::max_element(candidates, std::less(), [&](ChunkId chunk) {
      return schedule_.distance_to_next_use(chunk, position);
    }));
  }

  void fetch_ahead(uint32_t position, uint32_t occupied, std::span<const ChunkId> in_use) {
    if (depth_ == 0) return;
    const std::vector<ChunkId> residents(here_.begin(), here_.end());
    ahead_.plan({schedule_, position, step_.slots, occupied, in_use, residents}, depth_,
                [](ChunkId) { return true; });
    size_t victim = 0;
    for (const FetchPlan::Fetch& fetch : ahead_.fetches()) {
      if (here_.size() + occupied >= step_.slots) {
        ASSERT_LT(victim, ahead_.victims().size()) << "no place for chunk " << index_of(fetch.chunk);
        const ChunkId leaves = ahead_.victims()[victim++];
        EXPECT_FALSE(std::binary_search(in_use.begin(), in_use.end(), leaves));
        here_.erase(leaves);
      }
      EXPECT_TRUE(here_.insert(fetch.chunk).second);
      ++moved_.ahead;
      moved_.lead += fetch.position - (position == kNever ? 0 : position);
    }
  }

  const Step& step_;
  const Schedule schedule_;
  const uint32_t depth_;
  FetchPlan ahead_;
  std::set<ChunkId> here_;
  Moved moved_;
};

// Forward through `layers` chunks and back, with a gradient's place in each use of the way back.
Step there_and_back(uint32_t layers, uint32_t slots, bool renewed) {
  Step step{{}, layers, slots, std::vector<bool>(layers, renewed)};
  for (uint32_t l = 0; l < layers; ++l)
    step.uses.push_back({"forward" + std::to_string(l), UseKind::forward, {ChunkId{l}}});
  for (uint32_t l = layers; l-- > 0;)
    step.uses.push_back({"backward" + std::to_string(l), UseKind::backward, {ChunkId{l}}, 1});
  return step;
}

TEST(FetchPlan, FetchesTwiceTheLayersLessWhatIsKeptBesideGradients) {
  for (uint32_t slots = 3; slots <= 9; ++slots) {
    const Step step = there_and_back(8, slots, true);
    for (const uint32_t depth : {0u, 1u, 4u, 16u}) {
      const Moved moved = Tier(step, depth).run(2);
      EXPECT_EQ(moved.all(), 2 * 8 - (slots - 1)) << slots << " slots, depth " << depth;
      if (depth > 0) {
        EXPECT_EQ(moved.demand, 0u) << slots << " slots, depth " << depth;
      }
    }
  }
}

// With less room than a use and the next one need there is nothing to be done ahead, and nothing goes wrong.
TEST(FetchPlan, WaitsForTheUseWhereThereIsNoRoomBefore) {
  const Step step = there_and_back(6, 2, true);
  const Moved moved = Tier(step, 16).run(2);
  EXPECT_EQ(moved.all(), 2u * 6 - 1);
  EXPECT_EQ(moved.demand, 5u) << "each of the way back but the first, which is still there";
}

// A place that a gradient is going to take is not taken for what would have to leave for it again.
TEST(FetchPlan, LeavesRoomForGradientsThatAreStillToCome) {
  Step step{{}, 4, 3, std::vector<bool>(4, true)};
  step.uses = {{"a", UseKind::forward, {ChunkId{0}}},
               {"b", UseKind::backward, {ChunkId{1}}, 2},
               {"c", UseKind::forward, {ChunkId{2}}},
               {"d", UseKind::forward, {ChunkId{3}}}};
  const Schedule schedule(step.uses, 4, step.renewed);
  FetchPlan ahead(4);
  const ChunkId in_use[] = {ChunkId{0}};
  ahead.plan({schedule, 0, 3, 0, in_use, in_use}, 16, [](ChunkId) { return true; });
  ASSERT_EQ(ahead.fetches().size(), 1u);
  EXPECT_EQ(ahead.fetches()[0].chunk, ChunkId{1});
  EXPECT_EQ(Tier(step, 16).run(2).all(), 4u);
}

TEST(FetchPlan, LeavesOutWhatCannotBeFetched) {
  const Step step = there_and_back(4, 8, true);
  const Schedule schedule(step.uses, 4, step.renewed);
  FetchPlan ahead(4);
  ahead.plan({schedule, kNever, 8, 0, {}, {}}, 16, [](ChunkId chunk) { return chunk != ChunkId{1}; });
  std::vector<ChunkId> fetched;
  for (const FetchPlan::Fetch& fetch : ahead.fetches()) fetched.push_back(fetch.chunk);
  EXPECT_EQ(fetched, (std::vector{ChunkId{0}, ChunkId{2}, ChunkId{3}}));
}

Step random_step(std::mt19937& random) {
  Step step;
  step.chunk_count = 4 + random() % 14;
  const uint32_t most_together = 1 + random() % 3;
  uint32_t least = 0;
  for (uint32_t u = 0, uses = 5 + random() % 40; u < uses; ++u) {
    std::set<ChunkId> chunks;
    for (uint32_t i = 0, count = random() % (most_together + 1); i < count; ++i)
      chunks.insert(ChunkId{static_cast<uint32_t>(random() % step.chunk_count)});
    const uint32_t occupied = random() % 3 == 0 ? random() % 4 : 0;
    step.uses.push_back(
        {"use" + std::to_string(u), UseKind::forward, {chunks.begin(), chunks.end()}, occupied});
    least = std::max(least, occupied + static_cast<uint32_t>(chunks.size()));
  }
  step.slots = std::max(1u, least) + random() % 5;
  for (uint32_t c = 0; c < step.chunk_count; ++c) step.renewed.push_back(random() % 2 == 0);
  return step;
}

TEST(FetchPlan, MovesTheSameHoweverDeepItGoes) {
  uint32_t deeper = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Step step = random_step(random);
    const Moved one = Tier(step, 1).run(5);
    for (const uint32_t depth : {2u, 4u, 16u}) {
      const Moved more = Tier(step, depth).run(5);
      EXPECT_EQ(more.all(), one.all()) << "depth " << depth;
      EXPECT_EQ(more.demand, one.demand) << "depth " << depth;
      deeper += more.lead > one.lead ? 1 : 0;
    }
  }
  EXPECT_GT(deeper, 300u);
}

}  // namespace
}  // namespace terrace::fetch_plan_test
