// AccumulatedInHost: gradients of a step of several micro-batches, with optimizer states on the host. A
// landing goes to staging and is added from there to the chunk's accumulator: a host slot, or a landing slot
// of spilled gradients into which the sum of earlier micro-batches was read back. Accumulators are fp32, or
// of the parameters' type (OffloadOptions::accumulation_type), and hold the own tiles.
//
// Where all micro-batches of a step are open together, chunks that hold tensors of several layers land in
// parts (GradientRuns). A tensor's micro-batches are added in the order in which they land.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/gradients/gradients_below_device.h>
#include <terrace/offload/landing/gradient_staging.h>

namespace terrace {

class AccumulatedInHost final : public GradientsBelowDevice {
 public:
  using GradientsBelowDevice::Places;
  // All references outlive this.
  AccumulatedInHost(const ChunkShards& shards, Device& device, DeviceCache& cache,
                    std::unique_ptr<GradientArithmetic> arithmetic, Places places,
                    const AccumulationRules& rules, std::unique_ptr<GradientStaging> staging);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;
  void poll() override;
  void finish_micro_batch(bool ends_step) override;
  DataType type(ChunkId) const override { return rules_.type; }
  uint64_t d2h_bytes() const override { return staging_->d2h_bytes(); }
  RankBytes moved() const override { return staging_->moved(); }

 private:
  // The sums of a spilled gradient are taken at every landing: a last micro-batch without a gradient does not
  // read it back. Where a group of micro-batches joins then, it does, and they are taken once more.
  bool takes_sums(const GradientLanding& landing) const override {
    return rules_.is_last(landing) || !is_held(landing.chunk);
  }
  bool leaves_after(const GradientLanding& landing) const override {
    return rules_.layer_major ? landing.ends : landing.completes;
  }
  void finish_landing(ChunkId chunk) override;
  // The part is in the own tiles.
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last);
  void accumulate(const GradientLanding& own, const std::byte* gradient, bool is_last);
  auto accumulating() {
    return [this](const auto&... part) { accumulate(part...); };
  }
  void land_zero_spilled(const GradientLanding& landing, const GradientLanding& own);

  const ChunkShards& shards_;
  const AccumulationRules rules_;
  const std::unique_ptr<GradientStaging> staging_;
};

}  // namespace terrace
