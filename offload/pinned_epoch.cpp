#include <terrace/offload/pinned_epoch.h>

#include <terrace/base/error.h>

namespace terrace {

class PinnedEpoch::Parts {};

PinnedEpoch::PinnedEpoch(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
PinnedEpoch::~PinnedEpoch() = default;

namespace {

[[noreturn]] void none() {
  throw Error(ErrorKind::config, {"cannot read an epoch", "", "this build keeps no epochs yet", ""});
}

}  // namespace

uint64_t PinnedEpoch::epoch() const {
  none();
}
const std::string& PinnedEpoch::info() const {
  none();
}
uint64_t PinnedEpoch::record_tile_count() const {
  none();
}
void PinnedEpoch::read_records(uint64_t, std::span<std::byte>) {
  none();
}
uint64_t PinnedEpoch::frozen_bytes() const {
  none();
}
void PinnedEpoch::read_frozen(uint64_t, std::span<std::byte>) {
  none();
}
bool PinnedEpoch::clone_records(int) {
  none();
}
bool PinnedEpoch::clone_frozen(int) {
  none();
}

}  // namespace terrace
