// VictimRule: which item leaves a full tier of a simulation. The rules of memory/space/eviction_policy.h are
// used as they are; what is added is what they have no need to know where every chunk is clean.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <terrace/memory/space/eviction_policy.h>
#include <terrace/sim/internal/cache_level.h>

namespace terrace::sim {

class VictimRule {
 public:
  virtual ~VictimRule() = default;
  virtual void on_arrival(uint32_t item) = 0;
  virtual void on_use(uint32_t item) = 0;
  // One of `candidates` (not empty, ascending) at a moment of the level; `warm_up`: it is the first time
  // through, when a rule that records what happens has seen nothing yet.
  virtual uint32_t choose(std::span<const uint32_t> candidates, uint32_t moment, bool warm_up) = 0;

  // An item that could stay may leave at once when it is the best victim itself.
  virtual bool may_bypass() const { return false; }
  // What leaves is copied down even where the copy below is the same.
  virtual bool copies_clean() const { return false; }
  // What it does next depends on more than what is here: on the order in which that came.
  virtual bool remembers_arrivals() const { return false; }
};

// `level` outlives the rule. Of PolicyKind::opt it is Belady's rule with the step's end wrapped and bypass;
// a plan may do better (keep_plan.h).
std::unique_ptr<VictimRule> make_rule(PolicyKind policy, const CacheLevel& level);

}  // namespace terrace::sim
