// Places on the device for gradients that ranks exchange: of parts, each of the size of a share, and of what
// is handed over there.
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

// `landings` are on their way at once, in `trained` chunks.
inline void plan_exchanged_gradients(const OffloadOptions& options, uint32_t trained, uint32_t landings,
                                     MemoryPlan& plan) {
  if (options.ranks == 1 || trained == 0) return;
  plan.device_incoming_bytes =
      round_up(device_incoming_bytes(options, plan, landings), plan.device_granularity_bytes);
  if (options.gradients == GradientOrigin::handed_over_on_device) plan.device_handed_slots = landings;
}

}  // namespace terrace
