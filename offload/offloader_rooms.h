// OffloaderRooms: the parts of an Offloader in the order of their construction. Only this assembly knows
// them all: each part knows those that it is given.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/space/schedule.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/activations/placed_activations.h>
#include <terrace/offload/activations/tiered_activations.h>
#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/pull/rank_pulls.h>
#include <terrace/offload/state/call_order.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>
#include <terrace/offload/step/gradient_landings.h>
#include <terrace/offload/step/open_leases.h>
#include <terrace/offload/step/parameter_fetches.h>
#include <terrace/offload/step/step_recorder.h>
#include <terrace/offload/tiers/named_folders.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/update/early_update.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/update_agreement.h>
#include <terrace/offload/update/update_runner.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

struct OffloaderRooms {
  OffloaderRooms(const FlatSpace& flat_space, const OffloadOptions& offload_options,
                 std::span<const TensorUse> trace, Device& accelerator, Workers& compute_workers,
                 Log& user_log, InstructionSet set);
  ~OffloaderRooms();

  // The sum of all ranks is exact, so each of them comes to the same norm, that of the whole model. Why they
  // cannot update together is in `difference` then (update_agreement.h).
  GradientNorm norm_of_all(const UpdateSettings& settings);
  ExactSum squares_of_all();
  GradientNorm norm_over(Communicator& ranks, const UpdateBallot& mine);
  // Whether other ranks update with this one, in this part of the model or in another.
  bool has_others() const { return options.ranks > 1 || options.hooks.model_ranks != nullptr; }
  // No rank reads what this one has any more; waits for those that do.
  void end_with_ranks() noexcept;

  EvictionContext now() const { return {cursor->schedule(), cursor->position()}; }
  // Tells the other ranks that this one does not go on with the step, so that none waits for it. A call that
  // was refused changes nothing, and the step goes on.
  void leave_ranks(const std::exception& failure) const;
  void leave_ranks(const std::string& why) const;
  // The place of a tensor's first element in the flat ranges of the device.
  uint64_t byte_offset(TensorId tensor) const;
  // Throws Error(misuse) where a commit holds frozen parameters and the tier has no room for others. Returns
  // true if a commit holds them.
  bool require_frozen_change(std::string_view action);

  // The request and the observers.
  const FlatSpace& space;
  const std::unique_ptr<Communicator> dry_ranks;  // of a planned run of several; else null
  const OffloadOptions options;                   // with the paths and the communicator that are in effect
  const ChunkShards shards;                       // over the ranks of the options
  const NamedFolders named_folders;  // there before the drives are looked at, and until no file is left
  Device& device;
  const SteadyClock clock;
  const MemoryPlan plan;
  TimeAccount account;
  StepWatch watch;
  Decisions decisions;
  const RunContext run;

  // Memory and its contents.
  HostArena arena;                              // registered with the engines
  HostArena record_arena;                       // resident states; its pages may be given back
  std::unique_ptr<HostMemoryLock> device_lock;  // locks the arena; destroyed after everything that copies
  std::span<std::byte> work_memory;
  TensorStates states;
  DeviceCache cache;
  TierStores tiers;
  io::RingBuffer ring;
  const std::unique_ptr<RankPulls> pulls;  // null unless ranks pull
  const std::unique_ptr<Gathers> gathers;
  ParamHome params;
  GradientRuns runs;
  std::unique_ptr<GradientStore> gradients;
  RecordStore records;
  TensorSteps steps;
  const StateHomes homes;

  // The parts that work in a step and between steps.
  CallOrder order;
  StateCustody custody;
  UpdateRunner updates;
  EarlyUpdate early_update;
  StepBoundary boundary;
  ParameterFetches fetches;
  GradientLandings landings;
  StepRecorder recorder;
  StateBlocks blocks;
  Commits commits;
  TrainingState state;
  std::unique_ptr<TieredActivations> saved;  // null where none are
  HostBudget budget;
  std::unique_ptr<PlacedActivations> activations;  // null where all stay in the work memory

  ScheduleCursor training_cursor;
  ScheduleCursor evaluation_cursor;
  ScheduleCursor* cursor = &training_cursor;
  OpenLeases leases;
  // A failure of end_use(), which destructors of leases call; the next call throws it.
  std::exception_ptr landing_failure;
  bool has_ended_with_ranks = false;
  std::optional<Error> difference;
  std::vector<UpdateBallot> ballots;              // of all ranks, for a moment of the update
  uint64_t step_count = 0, evaluation_count = 0;  // begun so far
  OffloadCounters counters;                       // counted by the facade itself
  const OffloadReport report{*this};
};

}  // namespace terrace
