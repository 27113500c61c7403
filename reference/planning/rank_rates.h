// The rates at which ranks of one host exchange bytes, by the code that a run has for it: two communicators
// of this process, over sockets, each with a thread of its own, that read each other's memory where they may.
#pragma once

#include <cstdint>

#include <terrace/reference/planning/machine_rates.h>

namespace terrace {

// Sets rank_bytes and rank_seconds; each is measured for `round_ns` or a few operations. Takes 64 MiB of
// memory meanwhile, and a folder for the sockets, which is gone when it returns. Throws Error where the ranks
// cannot meet.
void measure_rank_rates(uint64_t round_ns, MachineRates& rates);

}  // namespace terrace
