// Chooses the size of chunks for a budget. Declared in memory_plan.h.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {
namespace {

constexpr uint64_t kLargestChunk = 16 * 1024 * 1024;

// Returns the bytes that a step moves to and from nvme because the host has no room for them.
uint64_t nvme_bytes(const MemoryPlan& plan, const OffloadOptions& options) {
  const uint32_t passes = options.layer_major ? 1 : rounds_of(options).count();
  uint64_t bytes = uint64_t{2} * passes * plan.spilled_chunks * plan.spill_slot_bytes;
  bytes += uint64_t{2} * passes * plan.nvme_activation_entries * plan.activation_entry_bytes;
  if (options.states == Placement::nvme)
    bytes += uint64_t{2} * (plan.record_chunks - plan.host_record_slots) * plan.record_slot_bytes;
  if (options.parameters == Placement::nvme)
    bytes += uint64_t{3} * (plan.parameter_chunks - plan.host_param_slots) * plan.share_bytes;
  return bytes;
}

// Returns the bytes of device slots beyond the minimum.
uint64_t spare_bytes(const ChunkCut& candidate) {
  const MemoryPlan& plan = candidate.plan;
  return (plan.device_slots - plan.device_slots_minimum) * plan.slot_bytes;
}

bool can_fetch_ahead(const MemoryPlan& plan) {
  return plan.device_slots >= std::min(plan.device_slots_useful, plan.device_slots_minimum * 2);
}

// Returns the bytes that a step does not move to and from nvme because host memory is left to saved
// activations, if as many come.
uint64_t saved_traffic(const MemoryPlan& plan, const OffloadOptions& options) {
  return uint64_t{2} * (options.layer_major ? 1 : rounds_of(options).count()) * plan.saved_activation_bytes;
}

// Large chunks have large slots and buffers, which take room that the host could keep state or saved
// activations in. Traffic does not fall steadily with the size, so several sizes are tried.
uint64_t less_traffic(const ChunkCut& largest, uint64_t least_elements,
                      FunctionRef<MemoryPlan(uint64_t elements)> plan_with, const OffloadOptions& options) {
  constexpr uint64_t kSmallest = 16;  // the smallest size tried is this part of the largest
  std::vector<ChunkCut> cuts = {largest};
  uint64_t most_saved = saved_traffic(largest.plan, options);
  for (uint64_t elements = largest.elements / 2;
       elements >= std::max(largest.elements / kSmallest, least_elements); elements /= 2) {
    MemoryPlan plan = plan_with(elements);
    if (!fits(plan, options)) continue;
    most_saved = std::max(most_saved, saved_traffic(plan, options));
    cuts.push_back({elements, std::move(plan)});
  }
  uint64_t chosen = 0, least = UINT64_MAX;
  for (const ChunkCut& cut : cuts) {
    const uint64_t bytes = nvme_bytes(cut.plan, options) + most_saved - saved_traffic(cut.plan, options);
    // The last chunk alone may make up most of a tenth, so a smaller gain does not count.
    if (chosen > 0 && bytes + (least + most_saved) / 10 >= least) continue;
    chosen = cut.elements;
    least = bytes;
  }
  return chosen;
}

// Returns the fewest elements of the widest type that fill whole granules of device memory; a power of two.
uint64_t least_chunk(const std::vector<TensorSpec>& tensors, const OffloadOptions& options) {
  uint64_t widest = 0;
  for (const TensorSpec& tensor : tensors) widest = std::max(widest, bytes_of(tensor.type));
  return widest == 0 ? kTileElements : std::max(kTileElements, options.device_granularity_bytes / widest);
}

std::vector<uint64_t> sizes_up_to(const std::vector<TensorSpec>& tensors, uint64_t least, uint64_t largest) {
  const uint64_t limit = std::max(largest == 0 ? kLargestChunk : std::min(largest, kLargestChunk), least);
  uint64_t parameters = 0;
  for (const TensorSpec& tensor : tensors) parameters += tensor.element_count();
  // A handful of chunks would leave nothing to move, and many tiny ones cost a request each.
  std::vector<uint64_t> sizes = {least};
  while (sizes.back() * 2 <= limit && sizes.back() * 16 <= parameters) sizes.push_back(sizes.back() * 2);
  std::ranges::reverse(sizes);
  return sizes;
}

}  // namespace

std::vector<uint64_t> chunk_sizes(const std::vector<TensorSpec>& tensors, const OffloadOptions& options,
                                  uint64_t largest) {
  return sizes_up_to(tensors, least_chunk(tensors, options), largest);
}

uint64_t choose_chunk_elements(const std::vector<TensorSpec>& tensors, std::span<const TensorUse> trace,
                               const OffloadOptions& options, uint64_t largest) {
  OffloadOptions tried = options;
  std::map<uint64_t, SpaceLayout> layouts;
  const auto layout_of = [&](uint64_t elements) -> const SpaceLayout& {
    return layouts.try_emplace(elements, tensors, elements).first->second;
  };
  const auto needs_of = [&](uint64_t elements, uint64_t device_budget_bytes) {
    tried.device_budget_bytes = device_budget_bytes;
    return plan_needs(layout_of(elements), trace, tried);
  };
  const auto plan_with = [&](uint64_t elements) { return needs_of(elements, options.device_budget_bytes); };
  std::vector<ChunkCut> candidates, too_large;
  const uint64_t least = least_chunk(tensors, options);
  const std::vector<uint64_t> sizes = chunk_sizes(tensors, options, largest);
  // Smaller chunks are more, so the largest are tried, and of the others those whose bookkeeping has room.
  require_bookkeeping(layout_of(sizes.front()), options);
  for (const uint64_t elements : sizes) {
    if (has_too_many_chunks(layout_of(elements), options)) break;
    ChunkCut cut{elements, plan_with(elements)};
    if (!fits(cut.plan, options)) {
      too_large.push_back(std::move(cut));
    } else if (can_fetch_ahead(cut.plan)) {
      return less_traffic(cut, least, plan_with, options);
    } else {
      candidates.push_back(std::move(cut));
    }
  }
  if (candidates.empty()) refuse_budgets(needs_of, too_large, options);
  uint64_t most = 0;
  for (const ChunkCut& candidate : candidates) most = std::max(most, spare_bytes(candidate));
  const auto enough = [most](const ChunkCut& candidate) { return spare_bytes(candidate) * 4 >= most * 3; };
  return std::ranges::find_if(candidates, enough)->elements;
}

}  // namespace terrace
