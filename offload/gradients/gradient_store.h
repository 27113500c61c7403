// GradientStore: the place of gradients between backward and update. There is one class for each kind of
// place:
//
//   GradientsInHost       states on the host, one micro-batch: a host slot, or nvme
//   AccumulatedInHost     states on the host, several micro-batches: an accumulator per chunk there
//   BorrowedGradients     states on the host, one micro-batch: memory of the program
//   GradientsOnDevice     states on the device, one micro-batch: the gradient stays in its device slot
//   AccumulatedOnDevice   states on the device, several micro-batches: an accumulator per chunk there
//
// The step thread uses it; the thread of the update uses the functions of GradientSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <terrace/memory/space/eviction_policy.h>
#include <terrace/offload/landing/gradient_arithmetic.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/landing/handed_part.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

class GradientStore : public GradientSource {
 public:
  // Starts a landing on its way; it is complete in the chunk's device slot, which is unpinned and given up.
  virtual void land(const GradientLanding& landing) = 0;
  // Notes that the chunk has no gradient in the step and is not updated.
  void leave_out(ChunkId chunk) {
    sums().set_zero(chunk);
    sums().forget(chunk);  // a step that was given up may have left it complete
  }
  // Lands zeros for a chunk without a slot, when its micro-batch has ended.
  virtual void land_zero(const GradientLanding& landing) = 0;
  // Lands a part that was handed over: the landing's only run is the part and the padding behind it, whose
  // gradient is zero. The part's memory is not used after the call, unless gradients are borrowed. `now` is
  // for the slot of the device that the part may need.
  virtual void land_from(const GradientLanding& landing, const HandedPart& part,
                         const EvictionContext& now) = 0;
  // Finishes the landings whose copies are over, while their bytes are still in a cache; never waits.
  virtual void poll() {}
  // Ends the open micro-batches: all landings are then where the update reads them, and their sums are known.
  // `ends_step`: the last micro-batch of the step is among them.
  virtual void finish_micro_batch(bool ends_step) = 0;
  // Ends them where the step is given up: nobody will read its gradients.
  virtual void give_up(bool ends_step) { finish_micro_batch(ends_step); }

  // True if a gradient of the last micro-batch has landed and its sums are known.
  virtual bool is_complete(ChunkId chunk) const { return sums().is_complete(chunk); }
  // True if every element of the chunk's complete gradient is finite.
  bool is_finite(ChunkId chunk) const { return sums().is_finite(chunk); }
  // The norm over the whole flat space, in an order that depends on the flat space alone. All micro-batches
  // must be over.
  GradientNorm norm() const { return sums().norm(); }

  // True if the chunk's gradient of this step has displaced its parameters, and nothing has replaced them
  // yet.
  virtual bool is_displaced(ChunkId) const { return false; }
  // Says that every displaced chunk is getting new parameters or has its old ones again.
  virtual void end_displacement() {}

  bool start_open(ChunkId chunk, io::Engine&) override { return sums().is_complete(chunk); }
  bool is_open(ChunkId chunk) const override { return sums().is_complete(chunk); }
  void release(ChunkId chunk) override { sums().forget(chunk); }

  // Bytes copied to the device and from it so far, counted when requested.
  virtual uint64_t h2d_bytes() const { return 0; }
  virtual uint64_t d2h_bytes() const { return 0; }
  // Of gradients, from other ranks and to them.
  virtual RankBytes moved() const { return {}; }
  // Bytes between nvme and the landing slots of spilled gradients.
  virtual uint64_t landing_read_bytes() const { return 0; }
  virtual uint64_t landing_write_bytes() const { return 0; }
  // Bytes read for updates so far; ask only while no update runs.
  virtual uint64_t opening_read_bytes() const { return 0; }

  // A host slot that is free between finish_micro_batch() and the next step. It serves parameters on their
  // way out when gradients have another precision.
  std::byte* landing_slot(uint32_t index) const { return landing_slots_[index]; }
  // A host slot for the parameters of a chunk without a slot of its own, between steps.
  std::byte* spare_slot(ChunkId chunk) const {
    return landing_slots_.empty() ? slot_below(chunk) : landing_slots_[0];
  }

 protected:
  GradientStore(std::unique_ptr<GradientArithmetic> arithmetic, std::vector<std::byte*> landing_slots)
      : arithmetic_(std::move(arithmetic)), landing_slots_(std::move(landing_slots)) {}

  GradientSums& sums() { return arithmetic_->sums(); }
  const GradientSums& sums() const { return arithmetic_->sums(); }
  // The host slot that the chunk's gradient takes; null where it takes none.
  virtual std::byte* slot_below(ChunkId) const { return nullptr; }

  const std::unique_ptr<GradientArithmetic> arithmetic_;
  const std::vector<std::byte*> landing_slots_;
};

}  // namespace terrace
