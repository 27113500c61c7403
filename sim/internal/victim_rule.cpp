#include <terrace/sim/internal/victim_rule.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <terrace/memory/space/eviction_policy.h>
#include <terrace/memory/space/schedule.h>

namespace terrace::sim {
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

// A rule of memory/space/eviction_policy.h.
class PolicyRule final : public VictimRule {
 public:
  PolicyRule(PolicyKind kind, const CacheLevel& level)
      : policy_(make_policy(kind, static_cast<uint32_t>(level.item_bytes.size()))),
        schedule_(schedule_of(level)) {}

  void on_arrival(uint32_t) override {}
  void on_use(uint32_t item) override { policy_->on_use(ChunkId{item}); }
  uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool warm_up) override {
    chunks_.clear();
    for (const uint32_t item : candidates) chunks_.push_back(ChunkId{item});
    return index_of(policy_->choose_victim(chunks_, {warm_up && records() ? nothing_ : schedule_, moment}));
  }
  bool may_bypass() const override { return policy_->kind() == PolicyKind::opt; }
  bool copies_clean() const override { return policy_->kind() == PolicyKind::patrickstar; }

 private:
  // Knows the step only when it has been through it once.
  bool records() const {
    return policy_->kind() == PolicyKind::gemini || policy_->kind() == PolicyKind::patrickstar;
  }

  std::unique_ptr<EvictionPolicy> policy_;
  const Schedule schedule_;
  const Schedule nothing_;
  std::vector<ChunkId> chunks_;
};

// lru, fifo and mru: a rule of the order in which items were used, or arrived (fifo). Of equals the lowest
// leaves.
class OrderRule final : public VictimRule {
 public:
  OrderRule(SimPolicy policy, const CacheLevel& level)
      : is_fifo_(policy == SimPolicy::fifo),
        is_mru_(policy == SimPolicy::mru),
        last_(level.item_bytes.size(), 0) {}

  void on_arrival(uint32_t item) override {
    if (is_fifo_) last_[item] = ++now_;
  }
  void on_use(uint32_t item) override {
    if (!is_fifo_) last_[item] = ++now_;
  }
  uint32_t choose(std::span<const uint32_t> candidates, uint32_t, bool) override {
    const auto when = [this](uint32_t item) { return last_[item]; };
    return is_mru_ ? *std::ranges::max_element(candidates, {}, when)
                   : *std::ranges::min_element(candidates, {}, when);
  }
  bool remembers_arrivals() const override { return is_fifo_; }

 private:
  const bool is_fifo_;
  const bool is_mru_;
  std::vector<uint64_t> last_;  // by item; 0: never
  uint64_t now_ = 0;
};

}  // namespace

std::unique_ptr<VictimRule> make_rule(SimPolicy policy, const CacheLevel& level) {
  if (const std::optional<PolicyKind> kind = policy_from_name(name_of(policy)))
    return std::make_unique<PolicyRule>(*kind, level);
  return std::make_unique<OrderRule>(policy, level);
}

}  // namespace terrace::sim
