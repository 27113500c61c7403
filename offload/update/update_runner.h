// UpdateRunner: runs updates, on the step thread or beside it, and looks after the chunks that an update has
// and the step thread wants: what the step thread does with such a chunk is queued behind the update, or
// waits for it. Nothing here asks whether an update is over already, so that no decision depends on time.
//
// It does not know steps and their gradients: whoever starts an update says that they are complete.
// Used by the step thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/memory/space/schedule.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/state_homes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/update/device_lanes.h>
#include <terrace/offload/update/device_update.h>
#include <terrace/offload/update/optimizer_pipeline.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/update/update_progress.h>
#include <terrace/offload/update/update_settings.h>
#include <terrace/offload/update/update_thread.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

class UpdateRunner {
 public:
  // All references outlive this.
  UpdateRunner(const RunContext& run, const StateHomes& homes, DeviceCache& cache, TierStores& tiers,
               io::RingBuffer& ring, TensorStates& states);

  UpdateMode mode() const { return mode_; }
  // Of the updates from now on; none is running. The mode is a possible one (require_mode).
  void set_mode(UpdateMode mode);
  // Throws Error(misuse) where an update could not be made with these.
  void require(const UpdateSettings& settings) const;

  // --- One update ---
  // The constants of every parameter group, for the next update. `gradient_norm` is that of the step.
  void set_constants(const UpdateSettings& settings, double gradient_norm);
  // All gradients are complete. In after_backward and during_backward the update is over when this returns,
  // and its failure is thrown; in next_forward it runs on, in the order in which `schedule` needs the chunks.
  void run(const Schedule& schedule);
  // during_backward: the thread begins with no chunk. With `allowed` it may change what it is given, by the
  // constants of now; else every chunk's states are read ahead until run().
  void begin_beside(bool allowed);
  // The chunk's gradient is complete. From now on its parameters are those that the update makes.
  void give(ChunkId chunk);
  // An update goes on beside the step thread, or waits for more chunks.
  bool is_running() const { return thread_ != nullptr && thread_->busy(); }
  // Waits for its end and throws its failure.
  void wait();

  // --- Chunks of an update that may not be over ---
  // Whether the update of the chunk was not seen to be over.
  bool is_unsettled(ChunkId chunk) const { return unsettled_[index_of(chunk)]; }
  // An operation goes no further without the chunk's new parameters.
  void wait_updated(ChunkId chunk);
  // The chunk's update is over.
  void settle(ChunkId chunk);
  // Where parameters live on the device: the chunk's new ones go there, queued behind its update.
  void send_updated(ChunkId chunk);

  // Adds what updates have counted. While one runs, it counts as much as there was before.
  void count(OffloadCounters& counters);
  // The chunks of the last update that was finished, in its order. Valid until the next one is.
  std::span<const ChunkTimes> last_times() const { return progress_.last_times(); }

 private:
  // What updates that are over have counted: the same in every run.
  struct Totals {
    OptimizerPipeline::Totals pipeline;
    uint64_t param_write_bytes = 0;
    uint64_t old_param_read_bytes = 0;
    uint64_t gradient_read_bytes = 0;
    uint64_t turn_wait_ns = 0;
  };
  const Totals& totals();
  void run_here();
  void collect_by_residence();
  void collect_in_order_of(const Schedule& schedule);
  void await(ChunkId chunk);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  TierStores& tiers_;
  TensorStates& states_;
  const SteadyClock clock_;
  UpdateProgress progress_;
  TileUpdate tiles_;
  std::unique_ptr<DeviceLanes> lanes_;  // null where the device updates no chunk whose states are below it
  OptimizerPipeline pipeline_;
  std::unique_ptr<DeviceUpdate> device_update_;  // null unless states are on the device
  std::unique_ptr<UpdateThread> thread_;         // null until a mode needs it
  UpdateMode mode_ = UpdateMode::after_backward;
  std::vector<OptimizerStep> constants_;  // by parameter group; kept for its memory, as is the next
  std::vector<ChunkId> order_;
  std::vector<bool> in_order_;              // per chunk
  std::vector<bool> unsettled_;             // per chunk
  std::vector<uint32_t> unsettled_chunks_;  // per tensor
  std::vector<bool> unsent_;                // per chunk, of parameters that live on the device
  Totals totals_;
  uint64_t wait_ns_ = 0;  // of the step thread, for updates beside it
};

}  // namespace terrace
