// What follows from options and a plan without planning.
#include <algorithm>
#include <string>

#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

std::string reason_without_commits(const SpaceLayout& space, const OffloadOptions& options) {
  if (options.states != Placement::nvme) return "optimizer states are not on nvme";
  if (!options.durable) return "records are written in place";
  if (options.record_layout.master == MasterForm::parameter)
    return "masters are the program's own parameters";
  if (std::ranges::none_of(space.sections(), &Section::trainable)) return "nothing is trained";
  for (const Section& section : space.sections()) {
    if (!section.trainable && options.parameters != Placement::nvme)
      return "parameters are not on nvme, and some of them are frozen";
  }
  return "";
}

DataType held_gradient_type(const Section& section, const OffloadOptions& options) {
  return accumulates(options) ? options.accumulation_type : section.type;
}

uint64_t useful_device_bytes(const MemoryPlan& plan) {
  return plan.work_bytes + plan.device_record_slots * plan.record_slot_bytes +
         plan.device_accumulator_slots * plan.accumulator_slot_bytes + plan.device_share_bytes +
         plan.device_exchange_bytes() + plan.device_lanes_bytes() +
         round_up(plan.device_activation_entries_useful * plan.activation_entry_bytes,
                  plan.device_granularity_bytes) +
         plan.device_slots_useful * plan.slot_bytes;
}

}  // namespace terrace
