// GradientPlace: where gradients are between backward and update. There is one class for each place, and each
// chunk has its gradient in one of them:
//
//   GradientsOnDevice  device memory: the slot in which backward made the gradient, or an accumulator
//   GradientsInHost    a host slot
//   GradientsOnNvme    nvme; a gradient passes through slots of host memory
//   BorrowedGradients  memory of the program
//
// A place adds up what comes to it. It knows neither on which way that comes (GradientStaging) nor how many
// ranks have a part in it (RankSum).
//
// The step thread uses it; the thread of the update uses the functions of GradientSource.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/landing/handed_part.h>

namespace terrace {

class GradientPlace : public GradientSource {
 public:
  // Ends the landings of a chunk that are on their way.
  using Finish = FunctionRef<void(ChunkId)>;

  // True if the chunk's gradient belongs here.
  virtual bool has(ChunkId chunk) const = 0;
  // Makes room for a landing; a gradient in the way leaves first.
  virtual void make_room(const GradientLanding& landing, Finish finish) = 0;
  // Where a landing, which is the whole gradient, is copied to; null: add() adds it there.
  virtual std::byte* place_of_whole(ChunkId chunk) = 0;
  // True if add() does not wait.
  virtual bool can_add(ChunkId) const { return true; }
  // Takes one addition of a landing (RankSum::Add). A gradient that is at its place has its sums taken.
  virtual void add(const GradientLanding& own, const std::byte* gradient, bool is_last) = 0;
  // Adds zeros for a chunk without a slot when its micro-batch has ended; `own` is the own part of the
  // landing.
  virtual void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) = 0;
  // Takes a part that was handed over: the landing's only run is the part and the padding behind it, whose
  // gradient is zero. The part's memory is not used after the call, unless gradients are borrowed. `now` is
  // for the slot of the device that the part may need. Returns true if it has become a landing in that slot.
  virtual bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
                    Finish finish) = 0;
  // Ends the open micro-batches: all landings are then where the update reads them, and their sums are known.
  // `ends_step`: the last micro-batch of the step is among them.
  virtual void finish(bool ends_step) = 0;
  // Ends them where the step is given up: nobody will read its gradients.
  virtual void give_up(bool ends_step) { finish(ends_step); }

  // True if a gradient of the last micro-batch has landed and its sums are known.
  virtual bool is_complete(ChunkId chunk) const = 0;
  // As GradientStore.
  virtual bool is_displaced(ChunkId) const { return false; }
  virtual void end_displacement() {}
  // Host memory of the chunk's gradient, free between steps; null: it has none.
  virtual std::byte* spare_slot(ChunkId) const { return nullptr; }

  // Bytes copied to the device so far, and moved between nvme and host memory, counted when requested.
  virtual uint64_t h2d_bytes() const { return 0; }
  virtual uint64_t landing_read_bytes() const { return 0; }
  virtual uint64_t landing_write_bytes() const { return 0; }
  virtual uint64_t opening_read_bytes() const { return 0; }
};

// Adds a part that was handed over, and zeros for the padding behind it, to its place below the device.
void add_handed_part(GradientPlace& place, const GradientLanding& landing, const HandedPart& part,
                     uint64_t element_bytes);

}  // namespace terrace
