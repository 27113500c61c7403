// Restores parameters from their masters where gradients have displaced them and no update followed, in a
// skipped or abandoned step. The result is exact, since parameters are always the rounded masters. Records
// are streamed.
#pragma once

#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

// Adds the restored chunks and the bytes read to `counters`.
void restore_displaced_parameters(StateBlocks& blocks, OffloadCounters& counters);

}  // namespace terrace
