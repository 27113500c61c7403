// Offloader: the memory manager as an embedding program sees it. It owns the tiers, answers leases, moves
// parameters ahead of the computation and gradients behind it, and runs the update. It knows no model and no
// configuration file.
//
//   FlatSpace space(tensors, chunk_elements);
//   Offloader offloader(space, options, trace, workers, log);
//   offloader.initialise(values);
//   for every step:
//     offloader.begin_step();
//     for every micro-batch: { ...operations open Leases on `offloader`...; offloader.end_micro_batch(); }
//     offloader.update(settings);
//
// With options.layer_major all micro-batches of a step are open together, select_micro_batch() says whose the
// uses that follow are, and end_micro_batch() ends them all.
//
// Used by one thread. After an Error has_whole_state() says whether the state in memory is still that of a
// step: a step or an update that failed leaves none, and from then on commits, exports, evaluations and steps
// throw Error(cancelled) until a whole state is loaded anew. What a commit, an export or a change of the host
// budget failed with leaves the state as it was. A call out of its order throws Error(misuse), which says
// what is open, and changes nothing (offload/call_order.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/commits/pinned_epoch.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/counters.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

struct UpdateSettings {
  std::span<const OptimizerSettings> groups;  // by TensorSpec::group
  uint64_t step = 1;                          // counts from 1
  double clip_norm = 0;                       // the largest global gradient norm; 0 does not clip
  double loss_scale = 1;                      // gradients are those of the loss times this
};

struct UpdateResult {
  double gradient_norm = 0;  // of the gradients divided by the loss scale, before clipping
  bool applied = true;       // false: the norm is not finite and nothing was changed
  // during_backward only: it was not finite, and chunks had been updated before that was known. Nothing but a
  // resumption from a commit or a checkpoint leads on from here.
  bool partly_applied = false;
};

struct TierUse {
  std::string purpose;
  uint64_t bytes = 0;
};

// What has gone over one nvme path since the Offloader was made, at its making included.
struct NvmePathUse {
  std::string path;
  uint64_t bytes = 0;           // read and written
  uint64_t busy_ns = 0;         // with at least one transfer in flight
  double bytes_per_second = 0;  // as new blocks are placed by now
};

class Offloader final : public ParameterAccess {
 public:
  // Allocates every budget at once. `trace` is that of one training step (all its micro-batches), or empty
  // when the first step shall be recorded. `device` has a budget of options.device_budget_bytes. All
  // references outlive the offloader. Throws Error(capacity) when the plan does not fit and Error(io) when a
  // tier folder cannot be used.
  Offloader(const FlatSpace& space, const OffloadOptions& options, std::span<const TensorUse> trace,
            Device& device, Workers& workers, Log& log,
            InstructionSet instruction_set = best_instruction_set());
  ~Offloader() override;
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  const MemoryPlan& plan() const;
  // Device memory for activations and workspaces: options.work_bytes, 2 MiB aligned.
  std::span<std::byte> work_memory();
  // Where options.activation_entries rest, or null when there are none.
  ActivationStore* activations();

  // Sets every parameter, streamed: `values` fills a run of elements of a tensor with fp32 values; it is
  // called on all workers at once. Moments start at 0.
  void initialise(FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<float> values)> values);

  // --- Training ---
  void begin_step();
  void end_micro_batch();
  UpdateResult update(const UpdateSettings& settings);
  // Ends a step before its update, in any micro-batch and between leases: its gradients are dropped and the
  // weights are those of the step before.
  void abandon_step();
  // Between two steps: waits for the copies from and to the device that a step began ahead of their use. What
  // one of them failed with is thrown where it is used.
  void wait_for_copies() const noexcept;

  // When updates run from the next one on; between steps. Finishes what is pending. Throws Error(config) for
  // another mode than after_backward where states are on the device.
  void set_update_mode(UpdateMode mode);
  UpdateMode update_mode() const;
  // Why a mode is not possible here, in words for the log; empty when it is.
  std::string why_not(UpdateMode mode) const;
  // during_backward only: what update() will be given at the end of this step; before the last micro-batch
  // goes backward. Without clipping and with a loss scale of 1 chunks are updated as their gradients become
  // complete. Otherwise, and in a step without this call, states are read ahead and updated in update().
  void announce_update(const UpdateSettings& settings);
  // Waits until no update is pending; throws what went wrong with it. Whatever else needs the state between
  // two steps (evaluation, export, import, commits) calls it.
  void finish_update();
  bool update_pending() const;
  // Of the last update that was finished, in its order. Valid until the next one is.
  std::span<const ChunkTimes> last_update_times() const;

  // The host budget from now on; between steps. The records that are kept in host memory make room or take it
  // up: what leaves is written where the tier has not got it, and its pages go back to the system at once;
  // what enters is read. More than the plan's budget has no effect. Waits for a commit in progress. Throws
  // Error(capacity) below what the run cannot do without, and then nothing has changed; or when the system
  // has not got the memory any more.
  void set_host_budget(uint64_t bytes);
  // The least that may be: everything but kept records, as this plan has it.
  uint64_t least_host_budget() const;
  // The host budget in force: the last that was set, at most the plan's.
  uint64_t host_budget() const;
  // How many chunks' optimizer states are in host memory now: what a step need not read and write.
  uint32_t kept_record_chunks() const;

  // Between begin_evaluation and end_evaluation only inference uses happen; no training step is open.
  void begin_evaluation();
  void end_evaluation();

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override;
  void end_use() override;
  // options.layer_major only, between uses. In backward the micro-batches of a tensor follow each other in
  // their order, and a tensor's backward uses in one micro-batch are over before another one's begin.
  void select_micro_batch(uint32_t micro_batch) override;
  const std::byte* parameter(TensorId tensor) const override;
  GradientView gradient(TensorId tensor) override;

  // --- Commits: committed states that survive any crash; between steps only ---
  // The options ask for them and they are possible.
  bool keeps_epochs() const;
  // Why not, in words for the log; empty when they are kept.
  const std::string& why_no_epochs() const;
  // Begins a commit of the whole state between two steps, with `info`, opaque text of the caller's. Returns
  // as soon as training may go on; the commit becomes durable meanwhile. Waits first for a commit in progress
  // and for the end of a PinnedEpoch. With `retain` the commit outlives those after it: the last
  // options.retained_epochs of these stay. Throws what an earlier commit failed with; so does begin_step().
  // While an update is pending the commit is put off to its end: the first backward use of the next step, or
  // whatever finishes the update before. An update that fails takes the commit with it, and finish_commit()
  // says so, whoever the failure itself was thrown to. Throws
  // Error(cancelled) where has_whole_state() is false and no update is pending; so does every call below that
  // reads the state.
  void begin_commit(std::string_view info, bool retain = false);
  bool commit_in_progress() const;
  // Waits until the commit in progress, if any, is durable and returns the number of the last one. Throws
  // what went wrong, once; the commit before is still there then. That it returns proves that the commit of
  // the last begin_commit() is durable.
  uint64_t finish_commit();
  uint64_t last_epoch() const;  // in the tier; 0: none
  // Of the commit that TierStart::resume went on from; empty otherwise.
  const std::string& taken_up_info() const;
  // The commit of an earlier run that is to be discarded is still there: until this run's first one.
  bool earlier_epoch_stays() const;
  // What the destructor does with the files of a tier that has a commit; they stay unless this says
  // otherwise. Without a commit nothing stays.
  void keep_tier(bool keep);
  // The last commit, to be read by one other thread while training goes on; there must be one. Waits for a
  // commit in progress. Goes before the offloader does; one at a time.
  std::unique_ptr<PinnedEpoch> pin_epoch();

  // Whether the state in memory is that of a step boundary: no step is open, no update is pending, and
  // whatever changed the state last ended well (offload/commits/whole_state.h).
  bool has_whole_state() const;

  // --- The state, independent of placement and chunk size; between steps only ---
  // Records of the trainable sections as one run of tiles in flat order, a block of tiles at a time.
  uint64_t record_tile_count() const;
  void export_records(FunctionRef<void(std::span<const std::byte> tiles)> sink);
  // Takes records in the same order (the source fills each run) and derives the parameters from them.
  void import_records(FunctionRef<void(std::span<std::byte> tiles)> source);
  // Parameters of frozen sections in their own precision, in flat order.
  uint64_t frozen_bytes() const;
  void export_frozen(FunctionRef<void(std::span<const std::byte> parameters)> sink);
  void import_frozen(FunctionRef<void(std::span<std::byte> parameters)> source);
  // The values of tensors as fp32: master weights, and parameters of frozen tensors. In flat order, each
  // wanted tensor from its first element to its last in runs of at most kTileElements. What holds wanted
  // tensors is read once, the rest is not.
  void export_values(
      FunctionRef<bool(TensorId)> wanted,
      FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)> sink);
  // One tensor's parameters, in its own precision.
  void read_parameter(TensorId tensor, std::span<std::byte> destination);

  // --- What happened ---
  OffloadCounters counters() const;
  // The least that a step can move with these budgets.
  TrafficBound traffic_bound(StepStart start) const;
  // Of a step that follows another one in the mode of updates as it is.
  TrafficBound traffic_bound() const;
  // Of a training step: as announced, or as the last one went.
  const Schedule& schedule() const;
  std::vector<TierUse> host_ledger() const;  // now
  // The most that it was: before any of it was given back.
  uint64_t host_peak_bytes() const;
  // Whether it has kept more or fewer records in between, so that steps differ in their least traffic.
  bool host_budget_has_changed() const;
  uint64_t tier_file_bytes() const;             // on all nvme paths together
  std::vector<NvmePathUse> nvme_paths() const;  // none when nothing is on nvme
  // For a program that knows better than the offloader what its time goes into: outside of leases, where it
  // computes too.
  TimeAccount& time();
  // What the thread that trains waits for, for another thread to read (runtime/observe/watchdog.h).
  const StepWatch& watch() const;
  // The state and the last transitions of every tensor, for messages.
  const TensorStates& states() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace terrace
