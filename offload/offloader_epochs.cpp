// The epochs of an Offloader: commits, and what a run takes up.
#include <terrace/base/error.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {

bool Offloader::keeps_epochs() const {
  return parts_->why_no_epochs.empty();
}

const std::string& Offloader::why_no_epochs() const {
  return parts_->why_no_epochs;
}

void Offloader::begin_commit(std::string_view, bool) {
  throw Error(ErrorKind::config, {"cannot commit the state", "", parts_->why_no_epochs, ""});
}

bool Offloader::commit_in_progress() const {
  return false;
}

uint64_t Offloader::finish_commit() {
  return 0;
}

uint64_t Offloader::last_epoch() const {
  return 0;
}

const std::string& Offloader::taken_up_info() const {
  return parts_->taken_up_info;
}

void Offloader::keep_tier(bool) {}

std::unique_ptr<PinnedEpoch> Offloader::pin_epoch() {
  throw Error(ErrorKind::config, {"cannot read an epoch", "", parts_->why_no_epochs, ""});
}

bool Offloader::epoch_is_pinned() const {
  return false;
}

}  // namespace terrace
