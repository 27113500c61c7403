// AccumulatedInHost: gradients of a step of several micro-batches, with optimizer states on the host. A
// landing is copied to staging and added from there to the chunk's accumulator: a host slot, or a landing
// slot of spilled gradients into which the sum of earlier micro-batches was read back. Accumulators are fp32,
// or of the parameters' type (OffloadOptions::accumulation_type).
//
// Where all micro-batches of a step are open together, chunks that hold tensors of several layers land in
// parts (GradientRuns). A tensor's micro-batches are added in the order in which they land.
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
  // `most_runs` is the largest number of runs in a landing.
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
  // The staging of the landing that is `age` landings younger than the oldest that may still be on its way.
  Staged& staged(size_t age) { return staged_[(next_staged_ + age) % staged_.size()]; }
  // The sums of a spilled gradient are taken at every landing: a last micro-batch without a gradient does not
  // read it back.
  bool takes_sums(const GradientLanding& landing) const override {
    return rules_.is_last(landing) || !is_held(landing.chunk);
  }
  bool leaves_after(const GradientLanding& landing) const override {
    return rules_.layer_major ? landing.ends : landing.completes;
  }
  void finish_landing(ChunkId chunk) override;
  // Waits for the copy into `from` and adds it. Call it for older stagings first: the micro-batches of a
  // tensor are added in order.
  void accumulate(Staged& from);
  void add(const GradientLanding& landing, const std::byte* gradient);
  void land_zero_spilled(const GradientLanding& landing);

  const AccumulationRules rules_;
  std::vector<Staged> staged_;
  uint32_t next_staged_ = 0;  // index of the oldest
};

}  // namespace terrace
