// When updates run, and what waits for them.
#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {

std::string Offloader::why_not(UpdateMode mode) const {
  if (mode == UpdateMode::after_backward) return "";
  if (parts_->options.states == Placement::none) return "optimizer states are on the device";
  return "";
}

void Offloader::set_update_mode(UpdateMode mode) {
  TERRACE_ASSERT(parts_->phase == Phase::idle, "the mode of updates is set between steps");
  if (const std::string reason = why_not(mode); !reason.empty()) {
    throw Error(
        ErrorKind::config,
        {fmt::format("updates cannot run {}", name_of(mode)), "", reason,
         "set terrace.update to after_backward or auto, or place the optimizer states on cpu or nvme"});
  }
  finish_update();
  parts_->update_mode = mode;
}

UpdateMode Offloader::update_mode() const {
  return parts_->update_mode;
}

void Offloader::announce_update(const UpdateSettings&) {
  TERRACE_ASSERT(parts_->phase == Phase::training, "an update is announced within its step");
}

void Offloader::finish_update() {}

bool Offloader::update_pending() const {
  return false;
}

std::span<const ChunkTimes> Offloader::last_update_times() const {
  return {};
}

}  // namespace terrace
