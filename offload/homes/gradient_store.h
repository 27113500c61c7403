// GradientStore: where gradients rest between backward and update. There is one class for each way in which
// they do:
//
//   GradientsInHost       states on the host, one micro-batch: a host slot, or nvme
//   AccumulatedInHost     states on the host, several micro-batches: an accumulator per chunk there
//   GradientsOnDevice     states on the device, one micro-batch: the gradient stays in its device slot
//   AccumulatedOnDevice   states on the device, several micro-batches: an accumulator per chunk there
//
// Used by the step thread; what GradientSource says, by the thread of the update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <terrace/offload/homes/gradient_arithmetic.h>
#include <terrace/offload/homes/gradient_runs.h>
#include <terrace/offload/homes/gradient_source.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

class GradientStore : public GradientSource {
 public:
  // What lands is complete in the chunk's device slot, unpinned: it starts on its way, and the slot with it.
  virtual void land(const GradientLanding& landing) = 0;
  // The same of a chunk without a slot, when its micro-batch has ended: zeros count.
  virtual void land_zero(const GradientLanding& landing) = 0;
  // Finishes what has landed meanwhile, while its bytes are still in a cache; never waits.
  virtual void poll() {}
  // Everything landed is where the update reads it, and its sums are known; the micro-batches that were open
  // are over. `ends_step`: the last of the step is one of them.
  virtual void finish_micro_batch(bool ends_step) = 0;

  // In the last micro-batch, of a gradient that is on its way: it has landed, and its sums are known.
  virtual bool is_complete(ChunkId chunk) const { return sums().is_complete(chunk); }
  // Of a complete gradient.
  bool is_finite(ChunkId chunk) const { return sums().is_finite(chunk); }
  // Over the whole flat space, in an order that depends on the flat space alone. All micro-batches are over.
  GradientNorm norm() const { return sums().norm(); }

  // Whether the chunk's gradient of this step has displaced its parameters, which nothing has replaced yet.
  virtual bool is_displaced(ChunkId) const { return false; }
  // New parameters are on their way to all, or the old ones are there again.
  virtual void end_displacement() {}

  bool start_open(ChunkId chunk, io::Engine&) override { return sums().is_complete(chunk); }
  bool is_open(ChunkId chunk) const override { return sums().is_complete(chunk); }
  void release(ChunkId chunk) override { sums().forget(chunk); }

  // Copied from the device so far, when it was asked for.
  virtual uint64_t d2h_bytes() const { return 0; }
  // Between nvme and the landing slots of spilled gradients.
  virtual uint64_t landing_read_bytes() const { return 0; }
  virtual uint64_t landing_write_bytes() const { return 0; }
  // Read for updates so far; while none runs.
  virtual uint64_t opening_read_bytes() const { return 0; }

  // A host slot that is free between finish_micro_batch() and the next step: for parameters on their way out
  // when gradients have another precision.
  std::byte* landing_slot(uint32_t index) const { return landing_slots_[index]; }
  // A host slot for the chunk's parameters between steps, where they have none of their own.
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
