// What a run that does not fit is short of. Of chunks of several sizes the one counts with which least is
// missing, so that what is named is the least that would do, to the byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// A tier with too little room: one byte less than `needed_bytes` would be too little as well.
struct TierShortage {
  std::string tier;           // "device", "host", "nvme"
  uint64_t budget_bytes = 0;  // of nvme: what is free
  uint64_t needed_bytes = 0;
  uint64_t missing_bytes() const { return needed_bytes - budget_bytes; }
};

// "4096 bytes (4.00 KiB) are missing".
std::string missing_text(const TierShortage& shortage);

// Error(capacity) with its figures. Where two tiers are named, neither alone is enough: that is the least of
// the device under any budget of the host, and the least of the host beside it.
class ShortageError final : public Error {
 public:
  ShortageError(ErrorParts parts, std::vector<TierShortage> tiers)
      : Error(ErrorKind::capacity, std::move(parts)), tiers_(std::move(tiers)) {}
  const std::vector<TierShortage>& tiers() const { return tiers_; }

 private:
  std::vector<TierShortage> tiers_;
};

// Of two ways to do the same, neither of which fits, what the one is short of with which least is missing.
const ShortageError& lesser(const ShortageError& one, const ShortageError& other);

// plan_memory() where budgets may be too small: then the plan has what the run needs at least,
// device_minimum_bytes and host_minimum_bytes (beside the device budget, or the least of it where that is
// more), and is not to be followed.
MemoryPlan plan_needs(const SpaceLayout& space, std::span<const TensorUse> trace,
                      const OffloadOptions& options);
inline bool fits(const MemoryPlan& plan, const OffloadOptions& options) {
  return plan.device_minimum_bytes <= options.device_budget_bytes &&
         plan.host_minimum_bytes <= options.host_budget_bytes;
}

// One size of chunks, and what a run needs with it.
struct ChunkCut {
  uint64_t elements;
  MemoryPlan plan;  // plan_needs() with the budgets of the run
};

// plan_needs() with chunks of so many elements and so large a device budget.
using NeedsOf = FunctionRef<MemoryPlan(uint64_t chunk_elements, uint64_t device_budget_bytes)>;

// Throws ShortageError: with none of `cuts`, of which there are some, the budgets of `options` are enough.
// Where either budget alone could be raised, it is the host's that is named.
[[noreturn]] void refuse_budgets(NeedsOf needs_of, std::span<const ChunkCut> cuts,
                                 const OffloadOptions& options);

}  // namespace terrace
