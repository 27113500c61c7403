// GradientLandings: lands the gradients of a step, which means that they leave for the place of the update.
// The first backward use that adds to a gradient opens it on the device, and after the last one it lands. A
// gradient that is handed over lands at once. The step thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/step/open_leases.h>
#include <terrace/offload/update/early_update.h>

namespace terrace {

class GradientLandings {
 public:
  // All references outlive this.
  GradientLandings(const RunContext& run, GradientRuns& runs, GradientStore& gradients, DeviceCache& cache,
                   TensorStates& states, EarlyUpdate& early_update);

  void begin_step();
  void begin_micro_batch();

  // --- One use, in `micro_batch` ---
  // The number of slots that gradients take, with those that the use is about to begin.
  uint32_t slots_with(const OpenUse& use) const;
  // Throws Error(misuse) where the use may not begin, because gradients of its tensors are complete.
  void require_usable(std::string_view operation, std::span<const TensorId> tensors, UseKind kind,
                      uint32_t micro_batch) const;
  // Pins the gradients of the use's chunks; `take_slot` is asked for those that have none yet.
  void open(const OpenUse& use, FunctionRef<CacheSlot&()> take_slot);
  // Undoes open() for a use that could not begin.
  void give_up(const OpenUse& use);
  // Ends the use, which has added to its gradients: the complete ones land.
  void close(const OpenUse& use, uint32_t micro_batch);
  // Notes that no use has the tensor any more. Its state is then that of its gradient.
  void released(TensorId tensor, uint32_t micro_batch) { follow(tensor, micro_batch); }
  // Tells the update of chunks whose gradients landed while other uses held their parameters.
  void tell_update();
  // True if a use has added to the tensor's gradient in this micro-batch.
  bool has_gradient(TensorId tensor) const { return uses_[index_of(tensor)].ended > 0; }

  // Lands the tensor's complete gradient of `micro_batch` from memory of the program, which is not used after
  // the call. `now` is for the slot of the device that it may need.
  void hand_over(TensorId tensor, const std::byte* gradient, uint32_t micro_batch,
                 const EvictionContext& now);
  // True if the tensor's gradient of `micro_batch` is complete.
  bool is_complete(TensorId tensor, uint32_t micro_batch) const {
    return runs_.is_complete(tensor, micro_batch);
  }

  // --- Between uses ---
  // Lands the complete gradients of `micro_batch` to make room for another micro-batch, which the following
  // uses belong to (layer_major). Throws Error(misuse) where a gradient on the device is not complete: the
  // other micro-batch would need a second slot.
  void land_open(uint32_t micro_batch);
  // Completes the gradients that the open micro-batches did not use, with zero. `micro_batch` is the last of
  // them.
  void complete_unused(uint32_t micro_batch);
  // Drops the gradients that are still on the device.
  void drop();

 private:
  // Uses of a tensor that go backward, in the micro-batch.
  struct Uses {
    uint32_t begun = 0;
    uint32_t ended = 0;
  };
  // Notes a gradient of the tensor, unless this rank has no micro-batch in the round and pulls: what it goes
  // through is nobody's then.
  void note_gradient(TensorId tensor, uint32_t micro_batch);
  // True if leases write the gradients.
  bool writes_gradients() const { return run_.options.gradients == GradientOrigin::leases; }
  void unpin(std::span<const ChunkId> chunks);
  void land(ChunkId chunk, uint32_t micro_batch);
  void note_tensors_landing(ChunkId chunk, uint32_t micro_batch);
  void note_landed(const GradientLanding& landing);
  void follow(TensorId tensor, uint32_t micro_batch);

  const RunContext& run_;
  GradientRuns& runs_;
  GradientStore& gradients_;
  DeviceCache& cache_;
  TensorStates& states_;
  EarlyUpdate& early_update_;
  std::vector<Uses> uses_;                 // per tensor
  std::vector<uint32_t> unlanded_chunks_;  // per tensor: its chunks whose gradient has not left
  std::vector<ChunkId> holding_;           // layer_major: chunks whose gradient has not left
  std::vector<ChunkId> untold_;            // of tell_update()
};

}  // namespace terrace
