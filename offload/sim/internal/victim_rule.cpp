#include <terrace/offload/sim/internal/victim_rule.h>

#include <algorithm>
#include <array>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/memory/eviction_policy.h>

namespace terrace {
namespace {

constexpr std::array kPolicies = {SimPolicy::opt, SimPolicy::lru,    SimPolicy::fifo,
                                  SimPolicy::mru, SimPolicy::gemini, SimPolicy::patrickstar};
constexpr std::array<std::string_view, kPolicies.size()> kNames = {"opt", "lru",    "fifo",
                                                                   "mru", "gemini", "patrickstar"};

}  // namespace

std::span<const SimPolicy> sim_policies() {
  return kPolicies;
}

std::string_view name_of(SimPolicy policy) {
  return kNames[static_cast<size_t>(policy)];
}

std::optional<SimPolicy> sim_policy_from_name(std::string_view name) {
  for (const SimPolicy policy : kPolicies) {
    if (name_of(policy) == name) return policy;
  }
  return std::nullopt;
}

namespace sim {
namespace {

// The uses of the level's own tier as a Schedule.
Schedule schedule_of(const CacheLevel& level) {
  const size_t item_count = level.item_bytes.size();
  std::vector<ScheduledUse> uses;
  // Between an item's last use in the cycle and its first one it changed below.
  std::vector<bool> renewed(item_count, false), begun(item_count, false);
  for (uint32_t m = 0; m < level.moments.size(); ++m) {
    ScheduledUse use{std::to_string(m), UseKind::forward, {}};
    for (const Touch& touch : level.moments[m].touches) {
      if (!is_foreign(touch.kind)) {
        use.chunks.push_back(ChunkId{touch.item});
        if (!begun[touch.item] && overwrites(touch.kind)) renewed[touch.item] = true;
        begun[touch.item] = true;
      } else if (touch.kind != TouchKind::foreign_read && !begun[touch.item]) {
        renewed[touch.item] = true;  // before its first use
      }
    }
    uses.push_back(std::move(use));
  }
  std::vector<bool> ended(item_count, false);
  for (size_t m = level.moments.size(); m-- > 0;) {
    for (const Touch& touch : level.moments[m].touches) {
      if (!is_foreign(touch.kind)) ended[touch.item] = true;
      if (is_foreign(touch.kind) && touch.kind != TouchKind::foreign_read && !ended[touch.item])
        renewed[touch.item] = true;  // after its last use
    }
  }
  return Schedule(std::move(uses), static_cast<uint32_t>(item_count), std::move(renewed));
}

class OwnRule final : public VictimRule {
 public:
  OwnRule(PolicyKind kind, const CacheLevel& level)
      : policy_(make_policy(kind, static_cast<uint32_t>(level.item_bytes.size()))) {
    if (kind == PolicyKind::opt) schedule_ = schedule_of(level);
  }

  void on_arrival(uint32_t item) override { policy_->on_arrival(ChunkId{item}); }
  void on_use(uint32_t item) override { policy_->on_use(ChunkId{item}); }
  uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool) override {
    chunks_.clear();
    for (const uint32_t item : candidates) chunks_.push_back(ChunkId{item});
    return index_of(policy_->choose_victim(chunks_, {schedule_, moment}));
  }
  bool may_bypass() const override { return policy_->kind() == PolicyKind::opt; }
  bool remembers_arrivals() const override { return policy_->kind() == PolicyKind::fifo; }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  Schedule schedule_;
  std::vector<ChunkId> chunks_;
};

// Colossal-AI, zero/gemini/placement_policy.py (AutoPlacementPolicy), version 0.3.
class GeminiRule final : public VictimRule {
 public:
  explicit GeminiRule(const CacheLevel& level) : schedule_(schedule_of(level)) {}

  void on_arrival(uint32_t) override {}
  void on_use(uint32_t) override {}
  uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool warm_up) override {
    if (warm_up) return candidates.front();
    // kNever, for what the step does not use again, is the farthest.
    const auto nearer = [&](uint32_t a, uint32_t b) {
      return schedule_.distance_within_step(ChunkId{a}, moment) <
             schedule_.distance_within_step(ChunkId{b}, moment);
    };
    return *std::max_element(candidates.begin(), candidates.end(), nearer);  // the first of equals
  }

 private:
  Schedule schedule_;
};

// PatrickStar, core/eviction_policy.py (LatestAccessChunkEvictionPolicy).
class PatrickStarRule final : public VictimRule {
 public:
  explicit PatrickStarRule(const CacheLevel& level) {
    moments_.resize(level.item_bytes.size());
    total_ = static_cast<uint32_t>(level.moments.size());
    for (uint32_t m = 0; m < total_; ++m) {
      for (const Touch& touch : level.moments[m].touches) {
        if (!is_foreign(touch.kind)) moments_[touch.item].push_back(m);
      }
    }
  }

  void on_arrival(uint32_t) override {}
  void on_use(uint32_t) override {}
  uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool warm_up) override {
    if (warm_up) return candidates.front();
    const auto earlier = [&](uint32_t a, uint32_t b) {
      return next_moment(a, moment) < next_moment(b, moment);
    };
    return *std::max_element(candidates.begin(), candidates.end(), earlier);
  }
  bool copies_clean() const override { return true; }

 private:
  uint64_t next_moment(uint32_t item, uint32_t now) const {
    const std::vector<uint32_t>& moments = moments_[item];
    const auto next = std::upper_bound(moments.begin(), moments.end(), now);
    return next != moments.end() ? *next : uint64_t{total_} + moments.front();
  }

  std::vector<std::vector<uint32_t>> moments_;
  uint32_t total_ = 0;
};

}  // namespace

std::unique_ptr<VictimRule> make_rule(SimPolicy policy, const CacheLevel& level) {
  switch (policy) {
    case SimPolicy::opt:
      return std::make_unique<OwnRule>(PolicyKind::opt, level);
    case SimPolicy::lru:
      return std::make_unique<OwnRule>(PolicyKind::lru, level);
    case SimPolicy::fifo:
      return std::make_unique<OwnRule>(PolicyKind::fifo, level);
    case SimPolicy::mru:
      return std::make_unique<OwnRule>(PolicyKind::mru, level);
    case SimPolicy::gemini:
      return std::make_unique<GeminiRule>(level);
    case SimPolicy::patrickstar:
      return std::make_unique<PatrickStarRule>(level);
  }
  TERRACE_ASSERT(false, "there is no such policy");
  return nullptr;
}

}  // namespace sim
}  // namespace terrace
