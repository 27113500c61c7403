// VictimRule: chooses the item that leaves a full tier of a simulation. It uses the rules of
// memory/space/eviction_policy.h as they are, adds facts that they do not need where every chunk is clean,
// and has three rules of its own to compare them with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <terrace/sim/internal/cache_level.h>
#include <terrace/sim/simulation.h>

namespace terrace::sim {

class VictimRule {
 public:
  virtual ~VictimRule() = default;
  virtual void on_arrival(uint32_t item) = 0;
  virtual void on_use(uint32_t item) = 0;
  // Returns one of `candidates` (not empty, ascending) at a moment of the level. `warm_up` is true in the
  // first cycle, when a rule that records a step has seen nothing yet.
  virtual uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool warm_up) = 0;

  // Whether an item that could stay may leave at once when it is the best victim itself.
  virtual bool may_bypass() const { return false; }
  // Whether an item that leaves is copied down even when the copy below is the same.
  virtual bool copies_clean() const { return false; }
  // Whether its choices depend on the order in which items arrived, not only on which items are here.
  virtual bool remembers_arrivals() const { return false; }
};

// `level` outlives the rule. For SimPolicy::opt the rule is Belady's with wrap-around and bypass; a plan may
// do better (choose_plan.h).
std::unique_ptr<VictimRule> make_rule(SimPolicy policy, const CacheLevel& level);

}  // namespace terrace::sim
