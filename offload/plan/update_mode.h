// UpdateMode: when the optimizer update of a step runs, in the words of the configuration. It never changes a
// number: the modes differ in time and in bytes moved only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/memory/space/tensor.h>

namespace terrace {

class FlatSpace;
struct MemoryPlan;
struct OffloadOptions;

enum class UpdateMode : uint8_t {
  after_backward,  // a phase of its own
  next_forward,    // each chunk just before the next forward first needs it
  // each chunk as soon as its gradient is complete, unless its update depends on the other gradients
  during_backward,
};

constexpr std::string_view name_of(UpdateMode mode) {
  return mode == UpdateMode::after_backward ? "after_backward"
         : mode == UpdateMode::next_forward ? "next_forward"
                                            : "during_backward";
}

constexpr std::optional<UpdateMode> update_mode_from_name(std::string_view name) {
  if (name == "after_backward") return UpdateMode::after_backward;
  if (name == "next_forward") return UpdateMode::next_forward;
  if (name == "during_backward") return UpdateMode::during_backward;
  return std::nullopt;
}

// The reason why a mode is not possible with this plan, in words; empty if it is possible.
std::string why_not(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                    const OffloadOptions& options);
// Throws Error(config) where the mode is not possible with this plan, or, without a plan, with any plan.
void require_mode(UpdateMode mode, const FlatSpace& space, const MemoryPlan& plan,
                  const OffloadOptions& options);
void require_mode(UpdateMode mode, const OffloadOptions& options);
// True if the mode, which these options allow, is possible only where host memory holds every gradient.
bool mode_holds_gradients(UpdateMode mode, const OffloadOptions& options);

// The moments of one chunk in one update, on Clock; 0 if the event did not happen. Resident records are not
// read.
struct ChunkTimes {
  ChunkId chunk{};
  uint64_t read_ns = 0;     // the last of its states was in memory
  uint64_t updated_ns = 0;  // its new parameters were complete
  uint64_t needed_ns = 0;   // an operation first asked for them; next_forward only
};

}  // namespace terrace
