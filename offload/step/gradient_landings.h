// GradientLandings: opens and lands the gradients of a step on the device. The first backward use that adds
// to a gradient opens it; after the last one the gradient lands, which means it leaves for the place of the
// update. The step thread uses it.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/gradient_runs.h>
#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/step/open_use.h>
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
  // Pins the gradients of the use's chunks; `take_slot` is asked for those that have none yet.
  void open(const OpenUse& use, uint32_t micro_batch, FunctionRef<CacheSlot&()> take_slot);
  // Ends the use, which has added to its gradients: the complete ones land.
  void close(const OpenUse& use, uint32_t micro_batch);
  // True if a use has added to the tensor's gradient in this micro-batch.
  bool has_gradient(TensorId tensor) const { return backward_uses_[index_of(tensor)] > 0; }

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
  void land(ChunkId chunk, uint32_t micro_batch);
  void note_tensors_landing(ChunkId chunk, uint32_t micro_batch);

  const RunContext& run_;
  GradientRuns& runs_;
  GradientStore& gradients_;
  DeviceCache& cache_;
  TensorStates& states_;
  EarlyUpdate& early_update_;
  std::vector<uint32_t> backward_uses_;    // per tensor
  std::vector<uint32_t> unlanded_chunks_;  // per tensor: its chunks whose gradient has not left
  std::vector<ChunkId> holding_;           // layer_major: chunks whose gradient has not left
};

}  // namespace terrace
