#include <terrace/offload/offloader_rooms.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/comm/operations/dry_communicator.h>
#include <terrace/offload/gradients/make_gradients.h>
#include <terrace/offload/options/tier_name.h>
#include <terrace/offload/parameters/parameter_gathers.h>
#include <terrace/offload/parameters/pulled_parameters.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/offload/plan/saved_room.h>

namespace terrace {
namespace {

std::unique_ptr<Communicator> make_dry_ranks(const OffloadOptions& options) {
  if (!options.dry || options.ranks == 1 || options.hooks.communicator != nullptr) return nullptr;
  return std::make_unique<DryCommunicator>(options.rank, std::vector<RankPlace>(options.ranks));
}

OffloadOptions effective(OffloadOptions options, Communicator* dry_ranks) {
  if (dry_ranks != nullptr) options.hooks.communicator = dry_ranks;
  if (options.ranks == 1) options.hooks.communicator = nullptr;  // it has nobody to talk to
  if (options.dry) options.hooks.model_ranks = nullptr;
  const Communicator* const ranks = options.hooks.communicator;
  if (options.ranks > 1 &&
      (ranks == nullptr || ranks->size() != options.ranks || ranks->rank() != options.rank))
    throw Error(
        ErrorKind::config,
        {"cannot train as", fmt::format("rank {} of {}", options.rank, options.ranks),
         ranks == nullptr ? "there is no communicator"
                          : fmt::format("the communicator is rank {} of {}", ranks->rank(), ranks->size()),
         "give " + Option::communicator + " the one of this rank"});
  if (pulls(options)) {
    options.hosts = options.sub_group_hosts = 1;  // each rank asks every owner itself
    if (!options.dry && options.hooks.communicator->pulls() == nullptr)
      throw Error(ErrorKind::config, {"cannot let ranks pull", "over this communicator", "it has no pulls",
                                      "set " + Option::rank_exchange + " to symmetric"});
  }
  options.layer_major = options.layer_major && rounds_of(options).count() > 1;
  return with_tier_folders(std::move(options));
}

// Checks the drives before anything is allocated.
MemoryPlan plan_with_disk(const FlatSpace& space, std::span<const TensorUse> trace,
                          const OffloadOptions& options) {
  MemoryPlan plan = plan_memory(space, trace, options);
  if (!options.dry) require_disk_room(plan, options);
  return plan;
}

bool has_frozen_section(const FlatSpace& space) {
  return std::ranges::any_of(space.sections(), [](const Section& section) { return !section.trainable; });
}

uint64_t host_record_bytes(const MemoryPlan& plan) {
  return plan.host_record_slots * plan.record_slot_bytes;
}

// A plan counts what ranks that do the same exchange.
std::unique_ptr<RankPulls> make_pulls(const OffloadOptions& options) {
  if (!pulls(options) || options.dry) return nullptr;
  return std::make_unique<RankPulls>(*options.hooks.communicator);
}

// Parameters that stay on the device are gathered after updates alone, in one order whatever ranks use.
std::unique_ptr<Gathers> make_gathers(const RunContext& run, HostArena& arena, DeviceCache& cache,
                                      RankPulls* pulls) {
  if (run.options.hooks.communicator == nullptr) return std::make_unique<NoGathers>();
  if (pulls != nullptr && !run.params_stay_on_device())
    return std::make_unique<PulledParameters>(run, arena, cache, *pulls);
  return std::make_unique<ParameterGathers>(run, arena, cache);
}

SpillTier spill_tier(TierStores& tiers) {
  if (tiers.gradients() == nullptr) return {};
  tiers.make_reader();
  return {tiers.gradients(), tiers.reader()};
}

std::unique_ptr<PlacedActivations> make_activations(const RunContext& run, const TierStores& tiers,
                                                    HostArena& arena) {
  const MemoryPlan& plan = run.plan;
  if (run.options.activation_entries == 0) return nullptr;
  std::unique_ptr<NvmeActivations> on_nvme;
  std::unique_ptr<HostActivations> on_host;
  std::span<std::byte> on_device;
  if (tiers.activations() != nullptr) {
    std::vector<uint32_t> get_order = run.options.activation_get_order;
    std::erase_if(get_order, [&](uint32_t entry) { return entry >= plan.nvme_activation_entries; });
    on_nvme = std::make_unique<NvmeActivations>(
        arena.take(plan.activation_slots * plan.activation_entry_bytes,
                   "activations on their way to and from nvme"),
        std::move(get_order),
        NvmeActivations::Tiers{*tiers.activations(), *tiers.reader(), run.device, run.watch});
  }
  if (plan.host_activation_entries > 0) {
    on_host = std::make_unique<HostActivations>(
        arena.take(plan.host_activation_entries * plan.activation_entry_bytes, "activation checkpoints"),
        plan.activation_entry_bytes, run.device, run.watch);
  }
  if (plan.device_activation_entries > 0)
    on_device = run.device.allocate_work_memory(plan.device_activation_bytes());
  return std::make_unique<PlacedActivations>(plan, std::move(on_nvme), std::move(on_host), on_device,
                                             run.device);
}

std::unique_ptr<TieredActivations> make_saved(const RunContext& run, TierStores& tiers,
                                              std::span<const TensorUse> trace) {
  const Placement placement = run.options.saved_activations;
  if (placement == Placement::none || run.options.dry) return nullptr;
  TieredActivations::Options options;
  options.memory.most_bytes = run.plan.saved_activation_bytes;
  options.memory.lock_pages = run.options.lock_host_memory;
  options.other_host_bytes = run.plan.host_bytes;
  options.budget_that_leaves = [&run, uses = std::vector(trace.begin(), trace.end())](uint64_t bytes) {
    return budget_that_leaves(bytes, run.space, uses, run.options);
  };
  std::unique_ptr<SavedDisk> disk;
  if (placement == Placement::nvme) {
    options.memory.granule_bytes = SavedDisk::kUnitBytes;
    disk = std::make_unique<SavedDisk>([&tiers](uint32_t number, uint32_t units) {
      return tiers.make_saved_store(number, units, SavedDisk::kUnitBytes);
    });
    tiers.make_reader();
  }
  return std::make_unique<TieredActivations>(options, run.device, run.watch, run.log, std::move(disk),
                                             tiers.reader());
}

}  // namespace

OffloaderRooms::OffloaderRooms(const FlatSpace& flat_space, const OffloadOptions& offload_options,
                               std::span<const TensorUse> trace, Device& accelerator,
                               Workers& compute_workers, Log& user_log, InstructionSet set)
    : space(flat_space),
      dry_ranks(make_dry_ranks(offload_options)),
      options(effective(offload_options, dry_ranks.get())),
      shards(space, options.rank, options.ranks),
      named_folders(offload_options, user_log),
      device(accelerator),
      plan(plan_with_disk(space, trace, options)),
      account(options.hooks.clock != nullptr ? *options.hooks.clock : clock),
      watch(&account, options.hooks.step_events),
      decisions(options.hooks.decisions),
      run{space,
          shards,
          options,
          plan,
          device,
          compute_workers,
          options.hooks.clock != nullptr ? *options.hooks.clock : clock,
          account,
          watch,
          user_log,
          set},
      arena({plan.host_bytes - host_record_bytes(plan) - plan.bookkeeping_bytes, options.lock_host_memory,
             options.dry},
            user_log),
      record_arena({host_record_bytes(plan), options.lock_host_memory, options.dry}, user_log),
      device_lock(options.lock_host_memory && !options.dry ? device.lock_host_memory(arena.memory())
                                                           : nullptr),
      work_memory(plan.work_bytes > 0 ? device.allocate_work_memory(plan.work_bytes)
                                      : std::span<std::byte>()),
      states(space),
      cache(space, device, plan, options.parameters, options.policy, states, watch, decisions),
      tiers(shards, options, plan, device, arena, user_log),
      ring(arena.take(plan.ring_slots * plan.ring_slot_bytes, "I/O ring"), plan.ring_slot_bytes),
      pulls(make_pulls(options)),
      gathers(make_gathers(run, arena, cache, pulls.get())),
      params(run, arena, ParameterStores{tiers.params(), tiers.frozen(), tiers.reader()}, *gathers),
      runs(space, rounds_of(options), options.unused_gradients),
      gradients(make_gradient_store(
          {run, arena, cache, params.host_slots(), runs, spill_tier(tiers), work_memory, pulls.get()})),
      records(run, record_arena, tiers.records(), tiers.records() != nullptr ? tiers.engine() : nullptr),
      steps(space.tensor_count(), options.unused_gradients),
      homes{params, *gradients, records, runs, steps},
      order(space, rounds_of(options).count(), options.layer_major),
      custody(has_frozen_section(space)),
      updates(run, homes, cache, tiers, {arena, ring}, states),
      early_update(run, homes, cache, states, updates),
      boundary(order, custody, updates),
      fetches(run, homes, cache, updates, early_update, decisions, [this] { boundary.finish_update(); }),
      landings(run, runs, *gradients, cache, states, early_update),
      recorder(run, homes, cache, {arena, record_arena, ring}),
      blocks(run, homes, cache, tiers, ring, states),
      commits(blocks, boundary, arena),
      state(
          blocks, boundary,
          {.require_frozen_change = [this](std::string_view action) { return require_frozen_change(action); },
           .about_to_load = [this] { commits.forget_cached(); }}),
      saved(make_saved(run, tiers, trace)),
      budget(run, {arena, record_arena, records, saved.get()}, boundary, commits,
             [this] { recorder.host_budget(); }),
      training_cursor(space.chunk_count(), renewed_chunks(space)),
      evaluation_cursor(space.chunk_count()),
      leases(space),
      ballots(options.hooks.model_ranks != nullptr ? options.hooks.model_ranks->size() : options.ranks) {
  boundary.on_update_over([this](bool is_whole) { commits.update_over(is_whole); });
  if (tiers.file_reader() != nullptr) params.read_past_host(*tiers.file_reader());
  if (!trace.empty()) {
    training_cursor.set_schedule(schedule_of(space, trace, leased_gradients(options)));
  }
  if (tiers.activations() != nullptr) tiers.make_reader();
  activations = make_activations(run, tiers, arena);
  recorder.describe(tiers);
  if (pulls != nullptr) pulls->begin();
}

OffloaderRooms::~OffloaderRooms() {
  end_with_ranks();
  commits.wait_idle();
  // Transfers in flight refer to memory and files that go next.
  cache.drain();
  if (tiers.engine() != nullptr) {
    while (tiers.engine()->in_flight() > 0) tiers.engine()->wait(1);
  }
}

void OffloaderRooms::end_with_ranks() noexcept {
  if (std::exchange(has_ended_with_ranks, true)) return;
  // The other ranks wait for what this one does not ask for any more.
  const bool is_own = pulls != nullptr && !boundary.step_changes_state();  // what is open
  if (!order.nothing_is_open() && !is_own) leave_ranks("it ends within a step");
  bool has_failed = std::uncaught_exceptions() > 0;
  try {
    boundary.finish_update();
    updates.wait();  // that of a step that is given up
  } catch (...) {
    // A failure is dropped here: no training follows, and the last commit is whole.
    has_failed = true;
  }
  if (pulls == nullptr) return;
  // Other ranks may still read the shares of this one.
  if (has_failed) leave_ranks("it ends because of an error");
  watch.set_activity("the end of its training");
  const WatchedWait waiting(watch, word_of_ranks("the ends of the other ranks"));
  pulls->end();
}

GradientNorm OffloaderRooms::norm_of_all(const UpdateSettings& settings) {
  const OffloadHooks& hooks = options.hooks;
  difference.reset();
  UpdateSettings compared = settings;
  if (options.unused_gradients == UnusedGradients::skip) compared.step = 0;  // tensors count their own
  UpdateBallot mine = ballot_of(gradients->norm(), compared, state.take_sum_of_written());
  if (hooks.communicator != nullptr) mine.norm = norm_over(*hooks.communicator, mine);
  if (hooks.model_ranks == nullptr) return mine.norm;
  // Of each part the first rank says what all of its ranks have found. Parameter groups, and values that are
  // written, are each part's own.
  if (options.rank > 0) mine.norm = {};
  mine.part_differs = difference.has_value();
  mine.lr = 0;
  mine.settings = {};
  mine.written = 0;
  return norm_over(*hooks.model_ranks, mine);
}

ExactSum OffloaderRooms::squares_of_all() {
  order.require_whole_step("cannot tell the gradient norm of");
  const GradientNorm norm = norm_of_all({});
  if (difference) throw *difference;
  return norm.squares();
}

GradientNorm OffloaderRooms::norm_over(Communicator& ranks, const UpdateBallot& mine) {
  static_assert(std::is_trivially_copyable_v<UpdateBallot>);
  const WatchedWait waiting(watch, word_of_ranks("the norm"));
  const std::span<UpdateBallot> all = std::span(ballots).first(ranks.size());
  ranks.ballot(Lane::control, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
  if (!difference) difference = difference_of(all);
  GradientNorm norm;
  for (const UpdateBallot& one : all) norm.merge(one.norm);
  return norm;
}

void OffloaderRooms::leave_ranks(const std::exception& failure) const {
  const auto* const error = dynamic_cast<const Error*>(&failure);
  const bool is_refusal =
      error != nullptr && (error->kind() == ErrorKind::misuse || error->kind() == ErrorKind::config);
  if (!is_refusal) leave_ranks(error != nullptr ? error->in(run.log.door()) : std::string(failure.what()));
}

void OffloaderRooms::leave_ranks(const std::string& why) const {
  for (Communicator* const ranks : {options.hooks.communicator, options.hooks.model_ranks})
    if (ranks != nullptr) ranks->leave(why);
}

// A commit keeps the frozen parameters that it has, and the tier has room for one chunk beside them.
bool OffloaderRooms::require_frozen_change(std::string_view action) {
  if (plan.frozen_spare_slots == 0) return false;
  commits.wait_idle();
  const bool are_committed = commits.last() > 0 && !commits.earlier_stays();
  if (are_committed && plan.frozen_chunks() > 1) {
    throw Error(ErrorKind::misuse,
                {std::string(action), fmt::format("commit {}", commits.last()),
                 "it holds those that are there, and the nvme tier has no room for both",
                 "leave them as they are: no step changes what is frozen; or begin with discard_commits"});
  }
  return are_committed;
}

uint64_t OffloaderRooms::byte_offset(TensorId tensor) const {
  const TensorPlace& place = space.place(tensor);
  const ChunkInfo& chunk = space.chunk(ChunkId{place.first_chunk});
  return place.first_chunk * plan.slot_bytes +
         (place.first_element - chunk.first_element) * bytes_of(space.tensor(tensor).type);
}

}  // namespace terrace
