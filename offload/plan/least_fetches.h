// least_fetch_cost(): the least cost of a step's fetches under any choice of the chunks that stay on the
// device. Every chunk takes one slot, and the caller gives the cost of a fetch. Between two uses a chunk
// either stays in its slot or is fetched again; the best choice is a flow of least cost through the slots,
// and exact.
#pragma once

#include <cstdint>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/schedule.h>

namespace terrace {

// AfterStep: the fate of a chunk's copy on the device at the end of a step.
enum class AfterStep : uint8_t {
  kept,     // the copy stays valid if it stayed to the end
  renewed,  // the copy is out of date: the chunk changes elsewhere
  made      // the new chunk is made on the device, whether it was there or not
};

struct FetchCosts {
  FunctionRef<AfterStep(ChunkId)> after_step;
  // The cost of a fetch for a use, in bytes. `is_first`: the use is the chunk's first in its step.
  FunctionRef<uint64_t(ChunkId, bool is_first)> cost;
};

// The average cost per step over `steps` steps in a row, where the first step finds the chunks of its choice
// on the device. Any number of repeated steps costs at least this on average. One step is enough where no
// chunk is `kept`.
uint64_t least_fetch_cost(const Schedule& schedule, uint32_t slots, uint32_t chunk_count, uint32_t steps,
                          const FetchCosts& costs);

}  // namespace terrace
