// GradientsOnDevice: gradients of a step of one micro-batch, with optimizer states on the device. A gradient
// stays in the device slot in which it was made until the update has used it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>

namespace terrace {

class GradientsOnDevice final : public GradientStore {
 public:
  // All references outlive this.
  GradientsOnDevice(const FlatSpace& space, DeviceCache& cache,
                    std::unique_ptr<GradientArithmetic> arithmetic, std::vector<std::byte*> landing_slots);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;
  uint64_t h2d_bytes() const override { return h2d_bytes_; }
  void finish_micro_batch(bool ends_step) override;
  DataType type(ChunkId chunk) const override { return space_.section_of(chunk).type; }
  std::byte* gradient(ChunkId chunk) override { return cache_.gradient_address(chunk); }
  void open(ChunkId chunk) override { cache_.pin_gradient(chunk); }
  void close(ChunkId chunk) override { cache_.unpin_gradient(chunk); }
  void release(ChunkId chunk) override;

 private:
  const FlatSpace& space_;
  DeviceCache& cache_;
  uint64_t h2d_bytes_ = 0;
};

}  // namespace terrace
