// GradientsInHost: gradients of a step of one micro-batch, with optimizer states on the host. Each is copied
// to its place below the device, and its sums are taken when it has arrived.
//
// Taking over: a gradient that lands in the slot of its parameters displaces them. From then to the update
// the chunk has parameters on the device only, if at all. The update makes new parameters from the masters; a
// step without an update restores the old ones from the masters.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/offload/gradients/gradients_below_device.h>

namespace terrace {

class GradientsInHost final : public GradientsBelowDevice {
 public:
  using GradientsBelowDevice::Places;
  // `take_over`: the slots of gradients are those of their parameters.
  GradientsInHost(const FlatSpace& space, Device& device, DeviceCache& cache,
                  std::unique_ptr<GradientArithmetic> arithmetic, Places places, bool take_over);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void poll() override;
  void finish_micro_batch(bool ends_step) override;
  DataType type(ChunkId chunk) const override { return space_.section_of(chunk).type; }
  bool is_displaced(ChunkId chunk) const override { return displaced_[index_of(chunk)]; }
  void end_displacement() override { displaced_.assign(displaced_.size(), false); }

 private:
  // A gradient whose copy to its place may still be running.
  struct Leaving {
    CacheSlot* source;
    ChunkId chunk;
  };
  // The sums of a block are right once its last run has landed.
  bool takes_sums(const GradientLanding&) const override { return true; }
  bool leaves_after(const GradientLanding& landing) const override { return landing.completes; }
  void finish_landing(ChunkId chunk) override;
  void finish_next();
  void displace(ChunkId chunk);
  void land_zero_beside(const GradientLanding& landing);

  const bool take_over_;
  std::vector<bool> displaced_;   // by chunk
  std::vector<Leaving> leaving_;  // in the order of the copies; the first finished_ are finished
  size_t finished_ = 0;
};

}  // namespace terrace
