#include <terrace/offload/lease/activation_store.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

void ActivationRecorder::start_put(uint32_t index, std::span<const float> values) {
  entry_count_ = std::max(entry_count_, index + 1);
  entry_bytes_ = std::max<uint64_t>(entry_bytes_, values.size_bytes());
}

void ActivationRecorder::start_get(uint32_t index, std::span<float>) {
  if (std::ranges::find(get_order_, index) == get_order_.end()) get_order_.push_back(index);
}

HostActivations::HostActivations(std::span<std::byte> memory, uint64_t entry_bytes, Device& device,
                                 StepWatch& watch)
    : device_(device),
      watch_(watch),
      entry_bytes_(entry_bytes),
      entry_count_(entry_bytes == 0 ? 0 : static_cast<uint32_t>(memory.size() / entry_bytes)),
      entries_(std::make_unique<Entry[]>(entry_count_)) {
  for (uint32_t e = 0; e < entry_count_; ++e) entries_[e].memory = memory.data() + e * entry_bytes;
}

// Copies in flight refer to the entries' events, so they are waited for.
HostActivations::~HostActivations() {
  for (uint32_t e = 0; e < entry_count_; ++e) entries_[e].moved.wait_done();
}

HostActivations::Entry& HostActivations::entry(uint32_t index) {
  TERRACE_ASSERT(index < entry_count_,
                 fmt::format("activation {} of {} that were planned", index, entry_count_));
  return entries_[index];
}

void HostActivations::start_put(uint32_t index, std::span<const float> values) {
  Entry& to = entry(index);
  TERRACE_ASSERT(
      values.size_bytes() <= entry_bytes_,
      fmt::format("activation {} has {} bytes, {} were planned", index, values.size_bytes(), entry_bytes_));
  to.bytes = values.size_bytes();
  d2h_bytes_ += to.bytes;
  to.moved.begin();
  device_.copy_work_to_host(
      to.memory, reinterpret_cast<const std::byte*>(values.data()), to.bytes, nullptr, to.moved,
      from_device_note(watch_.events(), TransferRole::activation, TransferReason::step, index));
}

void HostActivations::start_get(uint32_t index, std::span<float> values) {
  Entry& from = entry(index);
  TERRACE_ASSERT(
      values.size_bytes() <= from.bytes,
      fmt::format("activation {} has {} bytes, {} are asked for", index, from.bytes, values.size_bytes()));
  TERRACE_ASSERT(from.moved.done(), fmt::format("activation {} is still on its way", index));
  h2d_bytes_ += values.size_bytes();
  from.moved.begin();
  device_.copy_to_work(
      reinterpret_cast<std::byte*>(values.data()), from.memory, values.size_bytes(), nullptr, from.moved,
      to_device_note(watch_.events(), TransferRole::activation, TransferReason::step, index));
}

void HostActivations::wait(uint32_t index) {
  wait_watched(entry(index).moved, watch_, kActivationCopy);
}

}  // namespace terrace
