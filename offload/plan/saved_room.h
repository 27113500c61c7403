// The host memory that a plan leaves to saved activations, and the budget that leaves as much as is needed.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/memory/space/space_layout.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/use_trace.h>

namespace terrace {

// Of `rest` bytes of host memory, those that are left to saved activations before frozen parameters and
// before records are kept there. How many will be saved is unknown. A byte of them that has no room is
// written and read in each of m micro-batches, which is 2 m transfers in a step; of a frozen parameter it is
// read as often, twice in each of them; of a record it is read once and written once. If s is left to them
// and nothing is saved, 2 s bytes of records move in vain; if more is saved than there is room,
// (2 m - 2) (rest - s) more than need be. The worst of both is least for s = rest (m - 1) / m. Where a byte
// of each is worth the same, either half does, and without any room nothing could be saved.
struct SavedRoom {
  uint64_t before_frozen = 0;
  uint64_t before_records = 0;
};
SavedRoom room_for_saved(uint64_t rest, const OffloadOptions& options);

// The least host budget, with chunks of the present size and the other options as they are, whose plan leaves
// `bytes` to saved activations. A little more may leave a little less, where it buys another buffer.
uint64_t budget_that_leaves(uint64_t bytes, const SpaceLayout& space, std::span<const TensorUse> trace,
                            const OffloadOptions& options);

}  // namespace terrace
