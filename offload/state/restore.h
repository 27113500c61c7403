// Parameters made of their masters again, where gradients have displaced them and no update followed: a step
// that was skipped or abandoned. Exact, since parameters are always the rounded masters. Streamed.
#pragma once

#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

// Adds what it restored and read to `counters`.
void restore_displaced_parameters(StateBlocks& blocks, OffloadCounters& counters);

}  // namespace terrace
