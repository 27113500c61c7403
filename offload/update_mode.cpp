#include <terrace/offload/update_mode.h>

#include <fmt/format.h>

#include <vector>

#include <terrace/base/error.h>
#include <terrace/offload/memory_plan.h>
#include <terrace/offload/offload_options.h>

namespace terrace {

std::string why_not(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                    const OffloadOptions& options) {
  if (mode == UpdateMode::after_backward) return "";
  if (options.states == Placement::none) return "optimizer states are on the device";
  // Copies to the device keep their order: records would come behind parameters that wait for their update.
  if (mode == UpdateMode::next_forward && plan.device_lanes > 0)
    return "the device updates a part of the chunks";
  if (options.parameters != Placement::none) return "";
  if (plan.record_layout.master == MasterForm::remainder)
    return "parameters live on the device, and an update of compact state needs the old ones";
  const std::vector<bool> spills = spilled_gradients(space, plan);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable && spills[c])
      return "parameters live on the device, and host memory does not hold their gradients";
  }
  return "";
}

void require_mode(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                  const OffloadOptions& options) {
  const std::string reason = why_not(mode, space, plan, options);
  if (reason.empty()) return;
  const bool divided = mode == UpdateMode::next_forward && plan.device_lanes > 0;
  throw Error(
      ErrorKind::config,
      {fmt::format("updates cannot run {}", name_of(mode)), "", reason,
       divided ? "let them run after_backward or during_backward (terrace.update, --update), or let the "
                 "processor update all (offload_optimizer.ratio 1, --update-ratio)"
               : "let them run after_backward (terrace.update, --update), or place the parameters on "
                 "cpu or nvme"});
}

}  // namespace terrace
