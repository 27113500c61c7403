// EarlyUpdate: runs the update of the mode during_backward, within one step. Once the last micro-batch goes
// backward, chunks are given to the update as their gradients land. With clipping or a loss scale other than
// 1 states are read ahead instead. The step thread uses it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/update_runner.h>
#include <terrace/offload/update/update_settings.h>

namespace terrace {

class EarlyUpdate {
 public:
  // All references outlive this.
  EarlyUpdate(const RunContext& run, const StateHomes& homes, DeviceCache& cache, TensorStates& states,
              UpdateRunner& runner);

  // Call at the begin of a step, and when an open step is dropped.
  void begin_step();
  // Announces the settings of the update at the end of this step; ignored in other modes. Throws
  // Error(misuse) when the update has begun already.
  void announce(const UpdateSettings& settings);
  // Begins the update if it was announced. Call it whenever the last micro-batch is about to go on backward.
  void begin();
  // True while chunks are updated as they land.
  bool takes_landings() const { return as_landed_ && runner_.is_running(); }
  // Throws Error(misuse) where the update has begun with other settings than `settings`.
  void require_announced(const UpdateSettings& settings) const;
  // Notes that the chunk's complete gradient is on its way. The chunk's parameters on the device are stale
  // from now on.
  // Parameters of the caller's tensors are read until the update, and are changed then.
  void note_landing(ChunkId chunk);
  // True if note_landing() was called for the chunk in this step, until end().
  bool has_taken(ChunkId chunk) const { return taken_[index_of(chunk)]; }
  // Gives the update the chunks that have landed meanwhile; never waits.
  void take_landed();
  // Waits for the update, once every chunk has landed. Returns whether all chunks were updated.
  bool end();
  // True if a gradient overflowed after some chunks had been given to the update.
  bool is_partly_applied() const { return partly_applied_; }

 private:
  void give_if_finite(ChunkId chunk);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  TensorStates& states_;
  UpdateRunner& runner_;
  bool announced_ = false;
  bool begun_ = false;      // the last micro-batch goes backward
  bool as_landed_ = false;  // the update's constants are known before the gradients
  bool found_infinite_ = false;
  bool partly_applied_ = false;
  std::vector<ChunkId> landing_;             // in the order in which they left the device
  std::vector<ChunkId> callers_;             // chunks of the caller's tensors that have landed
  size_t landed_count_ = 0;                  // chunks of landing_ that were given to the update
  std::vector<bool> taken_;                  // per chunk: it is in landing_
  std::vector<uint32_t> unfinished_chunks_;  // per tensor: its chunks that are still to land
};

}  // namespace terrace
