// AccumulatedOnDevice: gradients of a step of several micro-batches, with optimizer states on the device.
// Each chunk has an accumulator of the own tiles in device memory, to which every landing is added: at once
// where there is one rank, else from host memory, through which it is exchanged. Where the device cannot
// reach that memory, each part is copied to the device before it is added.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/landing/gradient_staging.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

class AccumulatedOnDevice final : public GradientStore {
 public:
  // Takes the plan's accumulators from the device. All references outlive this.
  // `exchange` is null where there is one rank.
  AccumulatedOnDevice(const FlatSpace& space, const MemoryPlan& plan, Device& device, DeviceCache& cache,
                      std::unique_ptr<GradientArithmetic> arithmetic, std::vector<std::byte*> landing_slots,
                      const AccumulationRules& rules, std::unique_ptr<GradientStaging> exchange);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;
  uint64_t h2d_bytes() const override { return h2d_bytes_; }
  uint64_t d2h_bytes() const override { return exchange_ != nullptr ? exchange_->d2h_bytes() : 0; }
  RankBytes moved() const override { return exchange_ != nullptr ? exchange_->moved() : RankBytes(); }
  void poll() override;
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
  // Adds a part of the own tiles.
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last);
  // Copies the runs to incoming_, after what was added from there. Returns the address there of the chunk's
  // first own element.
  const std::byte* bring(const GradientLanding& own, const std::byte* gradient);
  auto adding() {
    return [this](const auto&... part) { add(part...); };
  }

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  const AccumulationRules rules_;
  const std::span<std::byte> incoming_;  // work memory; empty where the device reaches host memory
  const std::unique_ptr<GradientStaging> exchange_;
  std::vector<Accumulator> accumulators_;  // by chunk
  uint64_t h2d_bytes_ = 0;
};

}  // namespace terrace
