// The least that the fetches of a step can cost, whoever decides what stays on the device: every chunk takes
// one slot, and a fetch costs what its caller says. Between two uses a chunk either stays, in its slot, or is
// fetched again; which stay is a flow of least cost through the slots, and exact.
#pragma once

#include <cstdint>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/schedule.h>

namespace terrace {

// What the end of a step leaves of a chunk that has been on the device.
enum class AfterStep : uint8_t {
  kept,     // what was there still is, if it stayed to the end
  renewed,  // copies are worthless: it changes elsewhere
  made      // it is made there, whether it was there or not
};

struct FetchCosts {
  FunctionRef<AfterStep(ChunkId)> after_step;
  // Of a fetch for a use: bytes. `is_first`: in its step.
  FunctionRef<uint64_t(ChunkId, bool is_first)> cost;
};

// On average over `steps` steps in a row, of which the first finds on the device whatever it likes best: so
// the mean of any number of steps that repeat costs no less. One step is enough where none is kept.
uint64_t least_fetch_cost(const Schedule& schedule, uint32_t slots, uint32_t chunk_count, uint32_t steps,
                          const FetchCosts& costs);

}  // namespace terrace
