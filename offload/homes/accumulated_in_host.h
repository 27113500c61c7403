// AccumulatedInHost: gradients of a step of several micro-batches, with optimizer states on the host. What
// lands of a chunk is copied to staging and added to the chunk's accumulator from there: a host slot, or a
// landing slot of spilled gradients with what was written of earlier micro-batches. Accumulators are fp32, or
// of the parameters' type (OffloadOptions::accumulation_type).
//
// Chunks that hold tensors of several layers land in parts (GradientRuns) where all micro-batches of a step
// are open together. A tensor's micro-batches are added in the order in which they land.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/offload/homes/gradients_below_device.h>

namespace terrace {

class AccumulatedInHost final : public GradientsBelowDevice {
 public:
  using GradientsBelowDevice::Places;
  // `most_runs`: of a landing.
  AccumulatedInHost(const FlatSpace& space, Device& device, DeviceCache& cache,
                    std::unique_ptr<GradientArithmetic> arithmetic, Places places,
                    const AccumulationRules& rules, size_t most_runs);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void poll() override;
  void finish_micro_batch(bool ends_step) override;
  DataType type(ChunkId) const override { return rules_.type; }

 private:
  struct Staged {
    std::byte* memory = nullptr;
    CacheSlot* source = nullptr;  // null: nothing is landing here
    GradientLanding landing;      // with `runs`
    std::vector<GradientRun> runs;
  };
  // The one that landed `age` landings after the oldest that may still be on its way.
  Staged& staged(size_t age) { return staged_[(next_staged_ + age) % staged_.size()]; }
  void finish_landing(ChunkId chunk) override;
  // Waits for the copy into it. Older ones come first: the micro-batches of a tensor are added in order.
  void accumulate(Staged& from);
  void add(const GradientLanding& landing, const std::byte* gradient);
  void land_zero_spilled(const GradientLanding& landing);

  const AccumulationRules rules_;
  std::vector<Staged> staged_;
  uint32_t next_staged_ = 0;  // the oldest
};

}  // namespace terrace
