#include <terrace/offload/plan/update_mode.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

namespace {

// Obstacle: why a mode is impossible with any budgets, and the advice.
struct Obstacle {
  const char* reason;
  Wording advice;
};
std::optional<Obstacle> obstacle_to(UpdateMode mode, const OffloadOptions& options) {
  if (mode == UpdateMode::after_backward) return std::nullopt;
  if (options.states == Placement::none)
    return Obstacle{"optimizer states are on the device",
                    "let them run after_backward (" + Option::update_when +
                        "), or place the optimizer states on cpu or nvme (" + Option::states + ")"};
  // When a gradient is complete here, another rank may still use the parameters.
  if (mode == UpdateMode::during_backward && pulls(options))
    return Obstacle{
        "ranks pull, and no rank knows before the end of a step that the others have used a chunk",
        "let them run after_backward or next_forward (" + Option::update_when + "), or set " +
            Option::rank_exchange + " to symmetric"};
  if (mode == UpdateMode::next_forward && pulls(options) && options.parameters == Placement::none)
    return Obstacle{"ranks pull, and parameters on the device get there in the order of one rank",
                    "let them run after_backward (" + Option::update_when + "), or set " +
                        Option::rank_exchange + " to symmetric"};
  if (mode == UpdateMode::next_forward && options.gradients == GradientOrigin::borrowed)
    return Obstacle{"gradients are borrowed until the update is over",
                    "let them run after_backward (" + Option::update_when + "), or set " + Option::gradients +
                        " to handed_over"};
  if (options.parameters == Placement::none && options.record_layout.master == MasterForm::remainder)
    return Obstacle{"parameters live on the device, and an update of compact state needs the old ones",
                    "let them run after_backward (" + Option::update_when +
                        "), or leave out compact state (" + Option::masters +
                        "), or place the parameters on cpu or nvme (" + Option::parameters + ")"};
  return std::nullopt;
}

constexpr const char* kMatrices =
    "Muon's step of a matrix is made of the whole gradient, when nothing else computes";

bool has_matrices(const FlatSpace& space) {
  return std::ranges::any_of(space.sections(), &Section::by_matrix);
}

[[noreturn]] void refuse(UpdateMode mode, const Obstacle& obstacle) {
  throw Error(ErrorKind::config,
              {"cannot let updates run", std::string(name_of(mode)), obstacle.reason, obstacle.advice});
}

}  // namespace

void require_mode(UpdateMode mode, const OffloadOptions& options) {
  if (const std::optional<Obstacle> obstacle = obstacle_to(mode, options)) refuse(mode, *obstacle);
}

bool mode_holds_gradients(UpdateMode mode, const OffloadOptions& options) {
  return mode != UpdateMode::after_backward && options.parameters == Placement::none;
}

std::string why_not(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                    const OffloadOptions& options) {
  if (const std::optional<Obstacle> obstacle = obstacle_to(mode, options)) return obstacle->reason;
  // Copies to the device keep their order: records could be queued behind parameters that wait for their
  // update.
  if (mode == UpdateMode::next_forward && plan.device_lanes > 0)
    return "the device updates a part of the chunks";
  if (mode != UpdateMode::after_backward && has_matrices(space)) return kMatrices;
  if (!mode_holds_gradients(mode, options)) return "";
  const std::vector<bool> spills = spilled_gradients(space, plan);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable && spills[c])
      return "parameters live on the device, and host memory does not hold their gradients";
  }
  return "";
}

void require_mode(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                  const OffloadOptions& options) {
  require_mode(mode, options);
  const std::string reason = why_not(mode, space, plan, options);
  if (reason.empty()) return;
  if (reason == kMatrices)
    refuse(mode, {reason.c_str(), "let them run after_backward (" + Option::update_when + ")"});
  const bool divided = mode == UpdateMode::next_forward && plan.device_lanes > 0;
  refuse(mode,
         {reason.c_str(),
          divided
              ? "let them run after_backward or during_backward (" + Option::update_when + "), or set " +
                    Option::processor_share + " to 1, with which the processor updates all"
              : "let them run after_backward (" + Option::update_when + "), or raise " + Option::host_budget +
                    ", or place the parameters on cpu or nvme (" + Option::parameters + ")"});
}

}  // namespace terrace
