#include <terrace/offload/activations/placed_activations.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>

namespace terrace {

PlacedActivations::PlacedActivations(const MemoryPlan& plan, std::unique_ptr<NvmeActivations> nvme,
                                     std::unique_ptr<HostActivations> host,
                                     std::span<std::byte> device_memory, Device& device)
    : nvme_entries_(plan.nvme_activation_entries),
      below_device_(plan.nvme_activation_entries + plan.host_activation_entries),
      entry_bytes_(plan.activation_entry_bytes),
      nvme_(std::move(nvme)),
      host_(std::move(host)),
      device_memory_(device_memory),
      device_(device) {}

std::span<std::byte> PlacedActivations::device_entry(uint32_t index) const {
  const uint64_t offset = (index - below_device_) * entry_bytes_;
  TERRACE_ASSERT(offset < device_memory_.size(),
                 fmt::format("activation {} of {} that were planned", index,
                             below_device_ + device_memory_.size() / entry_bytes_));
  return device_memory_.subspan(offset, entry_bytes_);
}

void PlacedActivations::start_put(uint32_t index, std::span<const float> values) {
  if (is_on_nvme(index)) return nvme_->start_put(index, values);
  if (is_on_host(index)) return host_->start_put(index - nvme_entries_, values);
  const std::span<const std::byte> bytes = std::as_bytes(values);
  TERRACE_ASSERT(bytes.size() <= entry_bytes_, fmt::format("activation {} has {} bytes, {} were planned",
                                                           index, bytes.size(), entry_bytes_));
  device_.copy_work_in_order(device_entry(index).data(), bytes.data(), bytes.size());
}

void PlacedActivations::start_get(uint32_t index, std::span<float> values) {
  if (is_on_nvme(index)) return nvme_->start_get(index, values);
  if (is_on_host(index)) return host_->start_get(index - nvme_entries_, values);
  const std::span<std::byte> bytes = std::as_writable_bytes(values);
  device_.copy_work_in_order(bytes.data(), device_entry(index).data(), bytes.size());
}

void PlacedActivations::wait(uint32_t index) {
  if (!is_on_nvme(index) && !is_on_host(index)) return;
  const SteadyClock clock;
  const uint64_t start = clock.now_ns();
  is_on_nvme(index) ? nvme_->wait(index) : host_->wait(index - nvme_entries_);
  wait_ns_ += clock.now_ns() - start;
}

uint64_t PlacedActivations::d2h_bytes() const {
  return (host_ != nullptr ? host_->d2h_bytes() : 0) + (nvme_ != nullptr ? nvme_->d2h_bytes() : 0);
}

uint64_t PlacedActivations::h2d_bytes() const {
  return (host_ != nullptr ? host_->h2d_bytes() : 0) + (nvme_ != nullptr ? nvme_->h2d_bytes() : 0);
}

}  // namespace terrace
