// ShortageError: the tiers that have too little room for a run. Among chunks of several sizes the size with
// the smallest shortage counts, so an error names the least budget that would do, to the byte.
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
  uint64_t budget_bytes = 0;  // for nvme the free bytes
  uint64_t needed_bytes = 0;
  uint64_t missing_bytes() const { return needed_bytes - budget_bytes; }
};

// "4096 bytes (4.00 KiB) are missing".
std::string missing_text(const TierShortage& shortage);

// ShortageError is an Error(capacity) with its figures. If it names two tiers, raising one budget alone is
// not enough: the figures are the least device budget under any host budget, and the least host budget beside
// it.
class ShortageError final : public Error {
 public:
  ShortageError(ErrorParts parts, std::vector<TierShortage> tiers)
      : Error(ErrorKind::capacity, std::move(parts)), tiers_(std::move(tiers)) {}
  const std::vector<TierShortage>& tiers() const { return tiers_; }

 private:
  std::vector<TierShortage> tiers_;
};

// The shortage that is easier to remove, of two ways to do the same that both do not fit.
const ShortageError& lesser(const ShortageError& one, const ShortageError& other);

// plan_needs() is plan_memory() for budgets that may be too small. If they are, the plan only holds the least
// that the run needs, device_minimum_bytes and host_minimum_bytes, and must not be followed.
// host_minimum_bytes is the least beside the device budget, or beside device_minimum_bytes where that is
// more.
MemoryPlan plan_needs(const SpaceLayout& space, std::span<const TensorUse> trace,
                      const OffloadOptions& options);
inline bool fits(const MemoryPlan& plan, const OffloadOptions& options) {
  return plan.device_minimum_bytes <= options.device_budget_bytes &&
         plan.host_minimum_bytes <= options.host_budget_bytes;
}

// True if the chunks are so many that their bookkeeping alone exceeds the host budget, which is known before
// any table of them is made. Where they are fewer than kManyChunks, tables are small, and a plan finds it
// out.
inline constexpr uint32_t kManyChunks = 1u << 20;
bool has_too_many_chunks(const SpaceLayout& space, const OffloadOptions& options);
// Throws ShortageError of the host where it has. Its figure is the bookkeeping alone: the run needs more.
void require_bookkeeping(const SpaceLayout& space, const OffloadOptions& options);

// ChunkCut: one size of chunks and the needs of a run with it.
struct ChunkCut {
  uint64_t elements;
  MemoryPlan plan;  // plan_needs() with the budgets of the run
};

// NeedsOf gives plan_needs() for chunks of `chunk_elements` and a device budget of `device_budget_bytes`.
using NeedsOf = FunctionRef<MemoryPlan(uint64_t chunk_elements, uint64_t device_budget_bytes)>;

// Throws ShortageError because the budgets of `options` are too small for every one of `cuts`, which is not
// empty. If raising either budget alone would do, the error names the host.
[[noreturn]] void refuse_budgets(NeedsOf needs_of, std::span<const ChunkCut> cuts,
                                 const OffloadOptions& options);

}  // namespace terrace
