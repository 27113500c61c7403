#include <terrace/offload/plan/saved_room.h>

#include <algorithm>

#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

SavedRoom room_for_saved(uint64_t rest, const OffloadOptions& options) {
  if (options.saved_activations == Placement::none) return {};
  // Layer by layer those of all micro-batches are there at once, and each is written and read once in a step.
  const uint64_t micro_batches = options.layer_major ? 1 : rounds_of(options).count();
  return {.before_frozen = rest - rest / 2,
          .before_records = rest - rest / std::max<uint64_t>(2, micro_batches)};
}

uint64_t budget_that_leaves(uint64_t bytes, const SpaceLayout& space, std::span<const TensorUse> trace,
                            const OffloadOptions& options) {
  OffloadOptions other = options;
  const auto is_enough = [&](uint64_t budget_bytes) {
    other.host_budget_bytes = budget_bytes;
    const MemoryPlan plan = plan_needs(space, trace, other);
    return fits(plan, other) && plan.saved_activation_bytes >= bytes;
  };
  uint64_t too_little = plan_needs(space, trace, options).host_minimum_bytes - 1;
  uint64_t more = std::max<uint64_t>(bytes, 1);
  while (!is_enough(too_little + more)) more *= 2;
  uint64_t enough = too_little + more;
  while (enough - too_little > 1) {
    const uint64_t middle = too_little + (enough - too_little) / 2;
    (is_enough(middle) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace terrace
