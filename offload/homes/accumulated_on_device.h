// AccumulatedOnDevice: gradients of a step of several micro-batches, with optimizer states on the device.
// Each chunk has an accumulator in device memory, to which every landing is added at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

class AccumulatedOnDevice final : public GradientStore {
 public:
  // Takes the plan's accumulators from the device. All references outlive this.
  AccumulatedOnDevice(const FlatSpace& space, const MemoryPlan& plan, Device& device, DeviceCache& cache,
                      std::unique_ptr<GradientArithmetic> arithmetic, std::vector<std::byte*> landing_slots,
                      const AccumulationRules& rules);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;
  uint64_t h2d_bytes() const override { return h2d_bytes_; }
  void finish_micro_batch(bool ends_step) override;
  DataType type(ChunkId) const override { return rules_.type; }
  std::byte* gradient(ChunkId chunk) override;
  // In strict mode an accumulator is at its address only while it is open.
  void open(ChunkId chunk) override;
  void close(ChunkId chunk) override;

 private:
  struct Accumulator {
    DeviceSlot slot{};
    std::byte* address = nullptr;  // null: the chunk is frozen
  };

  Device& device_;
  DeviceCache& cache_;
  const AccumulationRules rules_;
  std::vector<Accumulator> accumulators_;  // by chunk
  uint64_t h2d_bytes_ = 0;
};

}  // namespace terrace
