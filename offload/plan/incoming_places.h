// Places of parts of gradients on the device, each of the size of a share.
#pragma once

#include <algorithm>
#include <cstdint>

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// What comes there of the parts that ranks exchange: for every landing that is on its way those of the other
// ranks, and the own one too where they are added there; or one from the host at a time, for accumulators
// that are there. The plan says how long shares are.
inline uint64_t device_incoming_bytes(const OffloadOptions& options, const MemoryPlan& plan,
                                      uint32_t landings) {
  const bool adds_there = options.states == Placement::none;
  if (exchange_on_devices(options))
    return uint64_t{landings} * (options.ranks - (adds_there ? 0 : 1)) * plan.share_bytes;
  return adds_there && options.exchanges_by_copies ? std::max(plan.share_bytes, plan.group_sum_bytes) : 0;
}

}  // namespace terrace
