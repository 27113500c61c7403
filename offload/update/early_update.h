// EarlyUpdate: the update of the mode during_backward, within one step. Once the last micro-batch goes
// backward, chunks are given to the update as their gradients land; where the settings depend on the
// gradients' norm, states are read ahead instead. Used by the step thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/state_homes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/update/update_runner.h>
#include <terrace/offload/update/update_settings.h>

namespace terrace {

class EarlyUpdate {
 public:
  // All references outlive this.
  EarlyUpdate(const RunContext& run, const StateHomes& homes, DeviceCache& cache, TensorStates& states,
              UpdateRunner& runner);

  // A step begins, or the one that went on is dropped.
  void begin_step();
  // What the update at the end of this step will be given. Throws Error(misuse) when it has begun already.
  void announce(const UpdateSettings& settings);
  // The last micro-batch is about to go backward: begins, where it was announced.
  void begin();
  // Chunks are updated as they land.
  bool takes_landings() const { return as_landed_ && runner_.is_running(); }
  // Throws Error(misuse) where the update that has begun is not that of `settings`.
  void require_announced(const UpdateSettings& settings) const;
  // The chunk's gradient is on its way, complete. Its copy on the device is stale from now on.
  void note_landing(ChunkId chunk);
  // Gives the update what has landed meanwhile; never waits.
  void take_landed();
  // Every chunk has landed: waits for the update. Returns whether all chunks were updated.
  bool end();
  // Some chunks were given to the update and not all: a gradient was not finite.
  bool is_partly_applied() const { return partly_applied_; }

 private:
  void give_if_finite(ChunkId chunk);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  TensorStates& states_;
  UpdateRunner& runner_;
  bool announced_ = false;
  bool as_landed_ = false;  // the constants are known before the gradients
  bool found_infinite_ = false;
  bool partly_applied_ = false;
  std::vector<ChunkId> landing_;             // in the order in which they were sent off
  size_t landed_count_ = 0;                  // of landing_: given to the update
  std::vector<uint32_t> unfinished_chunks_;  // per tensor: those of which something is still to land
};

}  // namespace terrace
