#include <terrace/runtime/planning/device_ledger.h>

namespace terrace {

std::vector<TierUse> device_ledger(const MemoryPlan& plan) {
  std::vector<TierUse> uses = {{"activations and workspaces", plan.work_bytes},
                               {"parameters and gradients", plan.device_slots * plan.slot_bytes}};
  const auto add = [&](const char* purpose, uint64_t bytes) {
    if (bytes > 0) uses.push_back({purpose, bytes});
  };
  if (plan.device_activation_entries > 0) add("activation checkpoints", plan.device_activation_bytes());
  add("this rank's share of the parameters", plan.device_share_bytes);
  add("optimizer states", plan.device_record_slots * plan.record_slot_bytes);
  add("gradient accumulators", plan.device_accumulator_slots * plan.accumulator_slot_bytes);
  add("gradients of other ranks", plan.device_incoming_bytes);
  add("gradients that leave for other ranks", plan.device_handed_bytes());
  if (plan.device_lanes > 0) add("buffers of updates on the device", plan.device_lanes_bytes());
  return uses;
}

}  // namespace terrace
