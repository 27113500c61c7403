// The inside of an Offloader: its tiers in the order in which they are made, and the steps of a use. Not for
// others.
#pragma once

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/call_order.h>
#include <terrace/offload/commits/epoch_committer.h>
#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/device/fetch_ahead.h>
#include <terrace/offload/homes/gradient_runs.h>
#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/offload/homes/placed_activations.h>
#include <terrace/offload/homes/record_store.h>
#include <terrace/offload/homes/spilled_gradients.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_side.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/transfer/drive_turns.h>
#include <terrace/offload/update/device_lanes.h>
#include <terrace/offload/update/device_update.h>
#include <terrace/offload/update/optimizer_pipeline.h>
#include <terrace/offload/update/update_progress.h>
#include <terrace/offload/update/update_thread.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

struct Offloader::Parts {
  Parts(const FlatSpace& flat_space, const OffloadOptions& offload_options, std::span<const TensorUse> trace,
        Device& accelerator, Workers& compute_workers, Log& user_log, InstructionSet set);
  ~Parts();

  // --- One use ---
  void begin_use(std::string_view key, std::span<const TensorId> leased, UseKind use);
  void fetch_missing();
  void open_gradients();
  void close_gradients();
  void prefetch();
  void wait_for_chunks();
  CacheSlot& require_slot(const char* role);
  EvictionContext context() const { return {cursor->schedule(), cursor->position()}; }
  uint64_t byte_offset(TensorId tensor) const;

  // --- One micro-batch, one step ---
  void reset_step();
  void reset_micro_batch();
  void complete_unused_gradients();
  void land(ChunkId chunk);
  void note_tensors_landing(ChunkId chunk);
  void land_open_gradients();
  // Whether the micro-batches that are open include the step's last.
  bool last_is_open() const { return order.last_micro_batch_is_open(); }
  void change_trainable(TensorState to);
  void drop_gradients();
  void throw_landing_failure();
  void restore_parameters();
  void restore_streamed_parameters();
  void prefetch_first_uses();
  void prefetch_uses(const Schedule& schedule, uint32_t position, std::span<const ChunkId> leased);
  void prefetch_by_policy(const EvictionContext& now);
  void prefetch_as_prescribed();
  bool fetch_ahead(ChunkId chunk, CacheSlot* slot);
  uint32_t slots_of_gradients() const;
  // Parameters are about to change below the device: what the device holds of them is stale.
  void forget_device_copies(StaleParams stale);

  // --- Updates: see offloader_update.cpp ---
  void make_steps(const UpdateSettings& settings, double gradient_norm);
  void start_update();
  void run_update();
  void collect_by_residence();
  void collect_in_forward_order();
  void give_to_update(ChunkId chunk);
  void await_update(ChunkId chunk);
  void wait_updated(ChunkId chunk);
  bool update_running() const;
  void settle(ChunkId chunk);
  void send_updated(ChunkId chunk);
  void send_updated_ahead();
  void finish_update();
  void wait_for_update();
  // After the end of a pending update. Throws where the state is not whole: `action` is what needs it.
  const WholeState& finished_state(std::string_view action);
  // Both throw Error(misuse).
  void require_commits(std::string_view action) const;
  void require_settings(const UpdateSettings& settings) const;
  void before_gradients();
  void forget_fresh();
  void begin_early_update();
  bool lands_for_update() const;
  void note_landing(ChunkId chunk);
  void update_landed();
  void update_if_finite(ChunkId chunk);
  bool end_early_update();
  void forget_early_update();
  // Of updates that are over: the same in every run.
  struct UpdateTotals {
    OptimizerPipeline::Totals pipeline;
    uint64_t param_write_bytes = 0;
    uint64_t old_param_read_bytes = 0;
    uint64_t gradient_read_bytes = 0;
    uint64_t turn_wait_ns = 0;
  };
  const UpdateTotals& update_totals();

  // --- State in and out ---
  std::byte* output_of(ChunkId chunk);
  // For every trainable chunk, a run of tiles at a time: `fill` makes the records and the parameters of the
  // same elements, and both are stored.
  using FillTiles =
      FunctionRef<void(ChunkId, uint64_t first_tile, std::span<std::byte> tiles, std::byte* parameters)>;
  void load_records(FillTiles fill);
  // The masters of one tile, in the form in which records and parameters hold them.
  void place_masters(const float* masters, DataType type, std::byte* tile, std::byte* parameters) const;
  void load_frozen(FunctionRef<void(ChunkId, std::span<std::byte> parameters)> fill);
  // Whether one of the tensors with elements in a run of a chunk is wanted.
  bool is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count,
                 FunctionRef<bool(TensorId)> wanted) const;
  void export_masters(ChunkId chunk, std::span<std::byte> bounce, FunctionRef<bool(TensorId)> wanted,
                      FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink);
  void export_frozen_values(ChunkId chunk, FunctionRef<bool(TensorId)> wanted,
                            FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink);
  void publish_loaded(ChunkId chunk, const std::byte* parameters);
  void read_chunk(ChunkId chunk, std::byte* destination);
  const std::byte* parameters_of(ChunkId chunk);
  template <typename Body>
  void for_each_tensor_in(ChunkId chunk, uint64_t first_element, uint64_t count, Body body) const;
  // Of whole masters. `parameters` are those of the first of the tiles.
  void derive_parameters(ChunkId chunk, std::span<const std::byte> tiles, std::byte* parameters);
  // The tiles' whole masters in checkpoint form, one tile at a time. `parameters` as above.
  void join_each(std::span<const std::byte> tiles, const std::byte* parameters,
                 FunctionRef<void(uint64_t tile, std::span<const std::byte> canonical)> body);
  bool is_compact() const { return plan.record_layout.master == MasterForm::remainder; }

  // --- The tier on nvme and its commits ---
  void make_activations();
  void take_turns();
  void keep_epochs();
  EpochStores epoch_stores() const;
  void adopt_found_epochs();
  void load_epoch();
  void read_record_blocks(FunctionRef<bool(ChunkId)> wanted, FunctionRef<void(const BlockTransfer&)> take);
  void load_epoch_records();
  void take_epoch_block(const BlockTransfer& read);
  void load_epoch_parameters(ChunkId chunk, BlockStore& store);
  void copy_parameters();
  void forget_cached();
  void add_cached(bool dirty);
  void commit_now(std::string_view info, bool retain);
  std::unique_ptr<PinnedEpoch> pin_epoch();

  // --- For whoever records steps: see offloader_trace.cpp ---
  bool records_step() const { return is_recording(options.step_events); }
  void describe_to_recorder();
  void record_step_begin();
  void record_gauge(TraceGauge gauge, uint64_t amount);
  void record_budget();
  void record_use_begin();
  void record_use_end();

  // --- The host budget ---
  void set_host_budget(uint64_t bytes);

  const FlatSpace& space;
  const OffloadOptions options;
  Device& device;
  Workers& workers;
  Log& log;
  const InstructionSet instruction_set;
  const SteadyClock clock;
  const MemoryPlan plan;
  TimeAccount account;
  StepWatch watch;
  Decisions decisions;
  uint64_t step_count = 0, evaluation_count = 0;  // begun
  StateCustody custody;

  HostArena arena;                              // registered with the engines
  HostArena record_arena;                       // of states in host memory, which may be given back
  std::unique_ptr<HostMemoryLock> device_lock;  // of the arena; goes after whatever copies
  std::span<std::byte> work_memory;
  TensorStates states;
  DeviceCache cache;
  TierStores tiers;
  io::RingBuffer ring;
  std::unique_ptr<PlacedActivations> activations;  // null where none leave the work memory
  std::unique_ptr<ParamHome> home;
  std::unique_ptr<SpilledGradients> spilled;  // null where the plan spills nothing
  std::unique_ptr<GradientStore> gradients;
  std::unique_ptr<DriveTurns> turns;  // null where none are taken
  std::unique_ptr<RecordStore> records;
  UpdateProgress progress;
  std::unique_ptr<TileUpdate> tile_update;
  std::vector<bool> device_side;       // by chunk: updated there though its states are below it
  std::unique_ptr<DeviceLanes> lanes;  // null where there is none
  std::unique_ptr<OptimizerPipeline> pipeline;
  std::unique_ptr<DeviceUpdate> device_update;  // null unless states are on the device
  std::unique_ptr<UpdateThread> update_thread;  // null until a mode needs it
  std::vector<ChunkId> update_order;            // kept for its memory, as is the next
  std::vector<bool> in_update_order;            // per chunk
  // What has been given to an update and was not seen to be over since.
  std::vector<bool> unsettled;             // per chunk
  std::vector<uint32_t> unsettled_chunks;  // per tensor
  std::vector<bool> unsent;                // per chunk, of parameters that live on the device
  UpdateTotals settled_totals;
  bool gradients_may_land = false;  // in this step, which so has begun to change the state
  struct PutOffCommit {
    std::string info;
    bool retain;
  };
  std::optional<PutOffCommit> put_off_commit;  // to the end of the update that is running
  uint64_t begun_epoch = 0;                    // of the last begin_commit(), until finish_commit() answers it
  // Of this step, during_backward.
  bool announced = false;
  bool updates_as_landed = false;
  bool found_infinite = false;
  bool partly_applied = false;   // some chunks were given to the update and not all
  std::vector<ChunkId> landing;  // in the order in which they were sent off
  size_t landed_count = 0;       // of landing: given to the update

  std::string taken_up_info;
  uint64_t earlier_epoch = 0;  // of another run, which goes with the first commit of this one
  bool keeps_tier = true;
  bool knows_cached = false;              // the committer does
  std::vector<std::byte> canonical_tile;  // of a checkpoint, where records are compact
  std::span<std::byte> epoch_memory;
  std::unique_ptr<EpochCommitter> committer;  // null where no commits are kept

  FetchAhead ahead;
  ScheduleCursor training_cursor;
  ScheduleCursor evaluation_cursor;
  ScheduleCursor* cursor = &training_cursor;
  UpdateMode update_mode = UpdateMode::after_backward;
  CallOrder order;

  // The use in progress.
  std::string operation;
  UseKind kind = UseKind::inference;
  std::vector<TensorId> tensors;
  std::vector<ChunkId> chunks;
  std::array<uint32_t, 3> chunks_found{};  // on the device, on their way, neither
  std::optional<TraceEvent> recorded;      // where steps are recorded

  // The step in progress, and its micro-batch: with options.layer_major the one that was selected.
  GradientRuns runs;
  std::vector<uint32_t> unfinished_chunks;  // per tensor: those of which something is still to land
  std::vector<uint32_t> backward_uses;      // per tensor
  std::vector<uint32_t> unlanded_chunks;    // per tensor: its chunks whose gradient has not left
  std::vector<ChunkId> holding_gradients;   // layer_major: chunks whose slot holds what has not left
  // Of end_use(), which destructors of leases call: the next call throws it.
  std::exception_ptr landing_failure;
  uint64_t host_budget_bytes = options.host_budget_bytes;  // in force
  bool host_budget_has_changed = false;
  OffloadCounters counters;
  std::vector<OptimizerStep> steps;  // of the parameter groups; kept for its memory
};

}  // namespace terrace
