// The size of chunks for a budget. Declared in memory_plan.h.
#include <algorithm>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/offload/memory_plan.h>

namespace terrace {
namespace {

constexpr uint64_t kLargestChunk = 16 * 1024 * 1024;

struct Candidate {
  uint64_t elements;
  MemoryPlan plan;
};

// In one step, both ways, of what the host has no room for.
uint64_t nvme_bytes(const MemoryPlan& plan, const OffloadOptions& options) {
  const uint32_t passes = options.layer_major ? 1 : options.accumulation_steps;
  uint64_t bytes = uint64_t{2} * passes * plan.spilled_chunks * plan.spill_slot_bytes;
  bytes += uint64_t{2} * passes * plan.nvme_activation_entries * plan.activation_entry_bytes;
  if (options.states == Placement::nvme)
    bytes += uint64_t{2} * (plan.record_chunks - plan.host_record_slots) * plan.record_slot_bytes;
  if (options.parameters == Placement::nvme)
    bytes += uint64_t{3} * (plan.parameter_chunks - plan.host_param_slots) * plan.slot_bytes;
  return bytes;
}

// Of device slots beyond the minimum.
uint64_t spare_bytes(const Candidate& candidate) {
  const MemoryPlan& plan = candidate.plan;
  return (plan.device_slots - plan.device_slots_minimum) * plan.slot_bytes;
}

bool can_fetch_ahead(const MemoryPlan& plan) {
  return plan.device_slots >= std::min(plan.device_slots_useful, plan.device_slots_minimum * 2);
}

// The slots and buffers of large chunks take room from what a host would keep. Whether less is moved with
// smaller ones goes up and down with their size.
uint64_t less_traffic(const Candidate& largest, FunctionRef<MemoryPlan(uint64_t elements)> plan_with,
                      const OffloadOptions& options) {
  constexpr uint64_t kSmallest = 16;  // of the largest, the part that is tried last
  uint64_t chosen = largest.elements;
  uint64_t least = nvme_bytes(largest.plan, options);
  for (uint64_t elements = largest.elements / 2;
       elements >= std::max(largest.elements / kSmallest, kTileElements); elements /= 2) {
    const uint64_t bytes = nvme_bytes(plan_with(elements), options);
    if (bytes >= least - least / 10) continue;  // the last chunk alone may be most of a tenth
    chosen = elements;
    least = bytes;
  }
  return chosen;
}

}  // namespace

uint64_t choose_chunk_elements(const std::vector<TensorSpec>& tensors, std::span<const TensorUse> trace,
                               const OffloadOptions& options, uint64_t largest) {
  const auto plan_with = [&](uint64_t elements) {
    return plan_memory(FlatSpace(tensors, elements), trace, options);
  };
  std::vector<Candidate> candidates;
  uint64_t elements = kTileElements;
  const uint64_t limit =
      std::max(largest == 0 ? kLargestChunk : std::min(largest, kLargestChunk), kTileElements);
  uint64_t parameters = 0;
  for (const TensorSpec& tensor : tensors) parameters += tensor.element_count();
  // A handful of chunks would leave nothing to move; many tiny ones cost a request each.
  while (elements * 2 <= limit && elements * 16 <= parameters) elements *= 2;
  for (; elements >= kTileElements; elements /= 2) {
    try {
      candidates.push_back({elements, plan_with(elements)});
      if (can_fetch_ahead(candidates.back().plan)) return less_traffic(candidates.back(), plan_with, options);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::capacity || (elements == kTileElements && candidates.empty())) throw;
    }
  }
  uint64_t most = 0;
  for (const Candidate& candidate : candidates) most = std::max(most, spare_bytes(candidate));
  const auto enough = [most](const Candidate& candidate) { return spare_bytes(candidate) * 4 >= most * 3; };
  return std::ranges::find_if(candidates, enough)->elements;
}

}  // namespace terrace
