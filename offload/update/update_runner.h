// UpdateRunner: runs updates, on the step thread or beside it. If the step thread needs a chunk of a running
// update, its work on the chunk is queued behind the update, or waits for it. Nothing here asks whether an
// update is over already, so no decision depends on time.
//
// It does not know steps and their gradients: the caller that starts an update says that they are complete.
// The step thread uses it.
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
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/update/device_lanes.h>
#include <terrace/offload/update/device_update.h>
#include <terrace/offload/update/matrix_update.h>
#include <terrace/offload/update/optimizer_pipeline.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/update/update_progress.h>
#include <terrace/offload/update/update_settings.h>
#include <terrace/offload/update/update_thread.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

class UpdateRunner {
 public:
  struct Memory {
    HostArena& arena;
    io::RingBuffer& ring;
  };
  // All references outlive this.
  UpdateRunner(const RunContext& run, const StateHomes& homes, DeviceCache& cache, TierStores& tiers,
               const Memory& memory, TensorStates& states);

  UpdateMode mode() const { return mode_; }
  // Sets the mode of the next updates. None may be running, and the mode must be possible (require_mode).
  void set_mode(UpdateMode mode);
  // Throws Error(misuse) where an update is not possible with these settings.
  void require(const UpdateSettings& settings) const;

  // False where updates of this step leave the chunk out, because none of its tensors has a gradient.
  bool is_updated(ChunkId chunk) const;

  // --- One update ---
  // Sets the constants of every parameter group for the next update. `gradient_norm` is the step's norm.
  void set_constants(const UpdateSettings& settings, double gradient_norm);
  // Runs the update; all gradients must be complete. In after_backward and during_backward the update is over
  // on return, and its failure is thrown. In next_forward it runs on, in the order in which `schedule` needs
  // the chunks.
  void run(const Schedule& schedule);
  // Begins an update of during_backward beside the step thread. With `allowed` it updates the chunks of
  // give() with the present constants. Without, it reads every chunk's states ahead and changes nothing until
  // run().
  void begin_beside(bool allowed);
  // Gives the update a chunk whose gradient is complete. From now on its parameters are those that the update
  // makes.
  void give(ChunkId chunk);
  // True while an update runs beside the step thread, or waits for more chunks.
  bool is_running() const { return thread_ != nullptr && thread_->busy(); }
  // Waits for the end of the running update and throws its failure.
  void wait();

  // --- Chunks of an update that may not be over ---
  // True while the chunk's update has not been seen to be over: until settle().
  bool is_unsettled(ChunkId chunk) const { return unsettled_[index_of(chunk)]; }
  // Waits for the chunk's new parameters, which an operation needs now.
  void wait_updated(ChunkId chunk);
  // Notes that the chunk's update is over.
  void settle(ChunkId chunk);
  // Sends the chunk's new parameters, where parameters live on the device, to their slot there, queued behind
  // the chunk's update.
  void send_updated(ChunkId chunk);

  // Adds the totals of updates to `counters`. A running update is not included.
  void count(OffloadCounters& counters);
  // What this rank has exchanged with others for updates.
  const RankBytes& moved() const { return matrices_.moved(); }
  // The times of the chunks of the last finished update, in its order; valid until the next update finishes.
  std::span<const ChunkTimes> last_times() const { return progress_.last_times(); }

 private:
  // The counts of finished updates: the same in every run.
  struct Totals {
    OptimizerPipeline::Totals pipeline;
    uint64_t param_write_bytes = 0;
    uint64_t old_param_read_bytes = 0;
    uint64_t gradient_read_bytes = 0;
  };
  const Totals& totals();
  UpdateConstants constants() const { return {group_steps_, tensor_steps_, &matrices_.tiles()}; }
  // Leaves out the chunk's tensors that have no gradient in this step; its gradients must be complete.
  void settle_tensors(ChunkId chunk);
  void run_here();
  void make_steps(uint32_t group);
  void carry_out();
  void update_here();
  void gather_updated();
  void collect_by_residence(FunctionRef<bool(ChunkId)> is_taken);
  void collect_in_order_of(const Schedule& schedule);
  void await(ChunkId chunk);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  TierStores& tiers_;
  TensorStates& states_;
  const SteadyClock clock_;
  UpdateProgress progress_;
  MatrixUpdate matrices_;
  TileUpdate tiles_;
  std::unique_ptr<DeviceLanes> lanes_;  // null where the device updates no chunk whose states are below it
  OptimizerPipeline pipeline_;
  std::unique_ptr<DeviceUpdate> device_update_;  // null unless states are on the device
  std::unique_ptr<UpdateThread> thread_;         // null until a mode needs it
  UpdateMode mode_ = UpdateMode::after_backward;
  std::vector<OptimizerStep> group_steps_;
  std::vector<OptimizerStep> tensor_steps_;  // UpdateConstants::tensors
  std::vector<bool> settled_tensors_;        // per tensor: tensor_steps_ knows whether it has a gradient
  std::vector<ChunkId> order_;
  std::vector<bool> in_order_;              // per chunk
  std::vector<bool> unsettled_;             // per chunk
  std::vector<uint32_t> unsettled_chunks_;  // per tensor
  std::vector<bool> unsent_;                // per chunk: send_updated() is still to come
  Totals totals_;
  uint64_t wait_ns_ = 0;  // waits of the step thread for updates beside it
};

}  // namespace terrace
