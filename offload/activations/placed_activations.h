// PlacedActivations: keeps every checkpointed activation in the tier that the plan gives it. The activations
// put away last come back first, so they stay nearest: the first entries are on nvme, the next in host
// memory, the last on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <terrace/memory/device/device.h>
#include <terrace/offload/activations/nvme_activations.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

class PlacedActivations final : public ActivationStore {
 public:
  // `device_memory` is work memory of the device. A null store or empty memory means that no entry is in that
  // tier.
  PlacedActivations(const MemoryPlan& plan, std::unique_ptr<NvmeActivations> nvme,
                    std::unique_ptr<HostActivations> host, std::span<std::byte> device_memory,
                    Device& device);

  void start_put(uint32_t index, std::span<const float> values) override;
  void start_get(uint32_t index, std::span<float> values) override;
  void wait(uint32_t index) override;

  // Bytes over the link between device and host.
  uint64_t d2h_bytes() const;
  uint64_t h2d_bytes() const;
  // Bytes between host and nvme.
  uint64_t read_bytes() const { return nvme_ != nullptr ? nvme_->read_bytes() : 0; }
  uint64_t write_bytes() const { return nvme_ != nullptr ? nvme_->write_bytes() : 0; }
  uint64_t wait_ns() const { return wait_ns_; }

 private:
  bool is_on_nvme(uint32_t index) const { return index < nvme_entries_; }
  bool is_on_host(uint32_t index) const { return index >= nvme_entries_ && index < below_device_; }
  std::span<std::byte> device_entry(uint32_t index) const;

  const uint32_t nvme_entries_;
  const uint32_t below_device_;  // entries on nvme or in host memory
  const uint64_t entry_bytes_;
  std::unique_ptr<NvmeActivations> nvme_;
  std::unique_ptr<HostActivations> host_;
  std::span<std::byte> device_memory_;
  Device& device_;
  uint64_t wait_ns_ = 0;
};

}  // namespace terrace
