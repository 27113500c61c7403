// Construction of the tiers, and what happens within one use and one micro-batch.
#include <terrace/offload/offloader_parts.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/homes/make_gradients.h>
#include <terrace/offload/plan/disk_room.h>

namespace terrace {
namespace {

// Before anything is allocated.
MemoryPlan plan_with_disk(const FlatSpace& space, std::span<const TensorUse> trace,
                          const OffloadOptions& options) {
  MemoryPlan plan = plan_memory(space, trace, options);
  if (!options.dry) require_disk_room(plan, options);
  return plan;
}

void require_one_type(const FlatSpace& space) {
  for (const Section& section : space.sections()) {
    if (section.type == space.sections().front().type) continue;
    throw Error(ErrorKind::config,
                {"cannot mix parameter types in one offloader",
                 fmt::format("{} and {}", name_of(space.sections().front().type), name_of(section.type)), "",
                 "give every tensor the same data type, or use an offloader for each"});
  }
}

bool has_frozen_section(const FlatSpace& space) {
  return std::ranges::any_of(space.sections(), [](const Section& section) { return !section.trainable; });
}

uint64_t host_record_bytes(const MemoryPlan& plan) {
  return plan.host_record_slots * plan.record_slot_bytes;
}

}  // namespace

Offloader::Parts::Parts(const FlatSpace& flat_space, const OffloadOptions& offload_options,
                        std::span<const TensorUse> trace, Device& accelerator, Workers& compute_workers,
                        Log& user_log, InstructionSet set)
    : space((require_one_type(flat_space), flat_space)),
      options(offload_options),
      device(accelerator),
      workers(compute_workers),
      log(user_log),
      instruction_set(set),
      plan(plan_with_disk(space, trace, options)),
      account(options.clock != nullptr ? *options.clock : clock),
      watch(&account, options.step_events),
      decisions(options.decisions, options.replay, user_log),
      custody(has_frozen_section(space)),
      arena({plan.host_bytes - host_record_bytes(plan) - plan.bookkeeping_bytes, options.lock_host_memory,
             options.dry},
            log),
      record_arena({host_record_bytes(plan), options.lock_host_memory, options.dry}, log),
      device_lock(options.lock_host_memory && !options.dry ? device.lock_host_memory(arena.memory())
                                                           : nullptr),
      work_memory(plan.work_bytes > 0 ? device.allocate_work_memory(plan.work_bytes)
                                      : std::span<std::byte>()),
      states(space),
      cache(space, device, plan, options.parameters, options.policy, states, watch, decisions),
      tiers(space, options, plan, device, arena, log),
      ring(arena.take(plan.ring_slots * plan.ring_slot_bytes, "I/O ring"), plan.ring_slot_bytes),
      progress(space.chunk_count()),
      in_update_order(space.chunk_count()),
      unsettled(space.chunk_count()),
      unsettled_chunks(space.tensor_count()),
      unsent(space.chunk_count()),
      ahead(space.chunk_count()),
      training_cursor(space.chunk_count(), renewed_chunks(space)),
      evaluation_cursor(space.chunk_count()),
      order(space, options.accumulation_steps, options.layer_major),
      runs(space, options.accumulation_steps),
      unfinished_chunks(space.tensor_count()),
      backward_uses(space.tensor_count()),
      unlanded_chunks(space.tensor_count()) {
  home = std::make_unique<ParamHome>(space, options.parameters, plan, arena, device,
                                     ParameterStores{tiers.params(), tiers.frozen()}, tiers.reader(), watch);
  if (tiers.file_reader() != nullptr) home->read_past_host(*tiers.file_reader());
  progress.set_on_completion(
      [this](ChunkId chunk, const std::exception_ptr& failure) { home->update_over(chunk, failure); });
  if (tiers.gradients() != nullptr) {
    spilled = std::make_unique<SpilledGradients>(space, plan, arena, *tiers.gradients(), watch);
  }
  gradients = make_gradient_store({space, options, plan, arena, device, cache, *home, runs, spilled.get(),
                                   workers, instruction_set, work_memory});
  records = std::make_unique<RecordStore>(space, options.states, plan, record_arena, device, tiers.records(),
                                          tiers.records() != nullptr ? tiers.engine() : nullptr, watch);
  take_turns();
  tile_update = std::make_unique<TileUpdate>(space, *gradients, *home, plan.record_layout, instruction_set,
                                             options.device_arithmetic, options.dry);
  device_side = updated_on_device(space, options);
  if (plan.device_lanes > 0 && options.lock_host_memory && !options.dry)
    records->lock_for_device(device_side);
  if (plan.device_lanes > 0)
    lanes = std::make_unique<DeviceLanes>(*tile_update, device, workers, watch, plan, options.dry);
  pipeline = std::make_unique<OptimizerPipeline>(
      space, *records, *gradients, *home, *tile_update, progress, watch, ring, plan,
      OptimizerPipeline::Sides{.on_device = device_side, .lanes = lanes.get()});
  if (options.states == Placement::none) {
    device_update = std::make_unique<DeviceUpdate>(space, *records, *gradients, *home, *tile_update, cache,
                                                   device, workers, tiers.engine(), plan);
  }
  if (!trace.empty()) {
    training_cursor.set_schedule(schedule_of(
        space, trace, gradients_stay(options) ? CompleteGradients::stay : CompleteGradients::leave));
  }
  operation.reserve(256);
  update_order.reserve(space.chunk_count());
  landing.reserve(space.chunk_count());
  if (options.layer_major) holding_gradients.reserve(plan.device_slots);
  reset_step();
  if (plan.keeps_epochs) keep_epochs();
  if (spilled != nullptr || tiers.activations() != nullptr) tiers.make_reader();
  if (spilled != nullptr) spilled->leave_through(*tiers.reader());
  make_activations();
  if (options.step_events != nullptr) describe_to_recorder();
}

void Offloader::Parts::make_activations() {
  if (options.activation_entries == 0) return;
  std::unique_ptr<NvmeActivations> on_nvme;
  std::unique_ptr<HostActivations> on_host;
  std::span<std::byte> on_device;
  if (tiers.activations() != nullptr) {
    std::vector<uint32_t> get_order = options.activation_get_order;
    std::erase_if(get_order, [&](uint32_t entry) { return entry >= plan.nvme_activation_entries; });
    on_nvme = std::make_unique<NvmeActivations>(
        arena.take(plan.activation_slots * plan.activation_entry_bytes,
                   "activations on their way to and from nvme"),
        std::move(get_order), NvmeActivations::Tiers{*tiers.activations(), *tiers.reader(), device, watch});
  }
  if (plan.host_activation_entries > 0) {
    on_host = std::make_unique<HostActivations>(
        arena.take(plan.host_activation_entries * plan.activation_entry_bytes, "activation checkpoints"),
        plan.activation_entry_bytes, device, watch);
  }
  if (plan.device_activation_entries > 0)
    on_device = device.allocate_work_memory(plan.device_activation_bytes());
  activations =
      std::make_unique<PlacedActivations>(plan, std::move(on_nvme), std::move(on_host), on_device, device);
}

Offloader::Parts::~Parts() {
  try {
    finish_update();
  } catch (...) {
    // Nothing is trained on any more; the last commit is whole.
  }
  update_thread.reset();
  if (committer != nullptr) {
    committer->wait_idle();
    tiers.tier()->keep_files(keeps_tier && committer->last_epoch() > 0);
  }
  // Whatever is in flight refers to memory and files that go next.
  cache.drain();
  if (tiers.engine() != nullptr) {
    while (tiers.engine()->in_flight() > 0) tiers.engine()->wait(1);
  }
}

uint64_t Offloader::Parts::byte_offset(TensorId tensor) const {
  const TensorPlace& place = space.place(tensor);
  const ChunkInfo& chunk = space.chunk(ChunkId{place.first_chunk});
  return place.first_chunk * plan.slot_bytes +
         (place.first_element - chunk.first_element) * bytes_of(space.tensor(tensor).type);
}

CacheSlot& Offloader::Parts::require_slot(const char* role) {
  if (CacheSlot* slot = cache.take_slot(context())) return *slot;
  if (update_running()) {  // what is being updated may not leave before
    finish_update();
    if (CacheSlot* slot = cache.take_slot(context())) return *slot;
  }
  throw Error(
      ErrorKind::capacity,
      {fmt::format("no device memory is left for the {} of an operation", role), operation,
       fmt::format("all {} chunk slots of {} bytes are in use at once", cache.slot_count(), plan.slot_bytes),
       "raise the device budget, use smaller chunks, or lease fewer tensors together"});
}

void Offloader::Parts::fetch_missing() {
  for (const ChunkId chunk : chunks) send_updated(chunk);
  for (const ChunkId chunk : chunks) cache.pin_param(chunk);
  chunks_found = {};
  for (const ChunkId chunk : chunks) {
    const ChunkState state = cache.param_state(chunk);
    ++chunks_found[state == ChunkState::resident ? 0 : state == ChunkState::fetching ? 1 : 2];
    if (state == ChunkState::absent) {
      TERRACE_ASSERT(!gradients->is_displaced(chunk),
                     fmt::format("{} asks for parameters of chunk {} whose gradient has taken their place: "
                                 "nothing uses a tensor after its last backward use",
                                 operation, index_of(chunk)));
      CacheSlot& slot = require_slot("parameters");
      decisions.made(DecisionKind::fetch, index_of(chunk));
      home->start_fetch(chunk, cache.begin_fetch(chunk, slot));
      cache.note_demand(chunk);
      ++counters.fetch_count;
      ++counters.demand_fetch_count;
    }
    cache.note_use(chunk);
  }
}

void Offloader::Parts::open_gradients() {
  for (const ChunkId chunk : chunks) {
    if (!space.section_of(chunk).trainable) continue;
    if (!cache.has_gradient(chunk)) {
      TERRACE_ASSERT(
          !runs.has_landed(chunk, order.micro_batch()),
          fmt::format("{} adds to a gradient that is complete: TensorSpec::backward_uses is too low",
                      operation));
      cache.begin_gradient(chunk, require_slot("gradients"));
      if (options.layer_major) holding_gradients.push_back(chunk);
    }
    cache.pin_gradient(chunk);
  }
}

// Of gradients, with those that this use is about to begin.
uint32_t Offloader::Parts::slots_of_gradients() const {
  uint32_t count = cache.gradient_slot_count();
  if (kind != UseKind::backward) return count;
  for (const ChunkId chunk : chunks)
    count += space.section_of(chunk).trainable && !cache.has_gradient(chunk) ? 1 : 0;
  return count;
}

void Offloader::Parts::prefetch() {
  if (home->placement() == Placement::none) return send_updated_ahead();
  if (cursor->position() != kNever) prefetch_uses(cursor->schedule(), cursor->position(), chunks);
}

void Offloader::Parts::prefetch_first_uses() {
  if (!training_cursor.schedule().empty()) prefetch_uses(training_cursor.schedule(), kNever, {});
}

void Offloader::Parts::prefetch_uses(const Schedule& schedule, uint32_t position,
                                     std::span<const ChunkId> leased) {
  if (home->placement() == Placement::none) return;
  if (decisions.prescribed() != nullptr) return prefetch_as_prescribed();
  if (options.prefetch_uses == 0) return;
  if (options.policy != PolicyKind::opt) return prefetch_by_policy({schedule, position});
  const FetchAhead::Now now = {schedule, position,         cache.slot_count(), cache.gradient_slot_count(),
                               leased,   cache.residents()};
  ahead.plan(now, options.prefetch_uses, [this](ChunkId chunk) { return !gradients->is_displaced(chunk); });
  uint64_t elements = 0;
  size_t next_victim = 0;
  for (const FetchAhead::Fetch& fetch : ahead.fetches()) {
    // Here after all: it was to leave meanwhile, and could not.
    if (cache.param_state(fetch.chunk) != ChunkState::absent) return;
    elements += space.chunk(fetch.chunk).elements;
    if (elements > options.prefetch_elements || !home->can_fetch_ahead(fetch.chunk)) return;
    CacheSlot* slot = cache.take_unused();
    while (slot == nullptr && next_victim < ahead.victims().size()) {
      if (cache.make_leave(ahead.victims()[next_victim++])) slot = cache.take_unused();
    }
    if (!fetch_ahead(fetch.chunk, slot)) return;
  }
}

// What another rule would evict leaves where it is needed later than what is fetched.
void Offloader::Parts::prefetch_by_policy(const EvictionContext& now) {
  const uint32_t first = now.position == kNever ? 0 : now.position + 1;
  const uint32_t held = cache.gradient_slot_count();
  uint64_t elements = 0;
  uint32_t reserved = 0;  // slots that gradients of the uses in between will take
  const uint64_t end =
      std::min<uint64_t>(now.schedule.size(), static_cast<uint64_t>(first) + options.prefetch_uses);
  for (uint32_t p = first; p < end; ++p) {
    const ScheduledUse& use = now.schedule.use(p);
    reserved = std::max(reserved, use.occupied_slots - std::min(use.occupied_slots, held));
    for (const ChunkId chunk : use.chunks) {
      if (cache.param_state(chunk) != ChunkState::absent || gradients->is_displaced(chunk)) continue;
      elements += space.chunk(chunk).elements;
      if (elements > options.prefetch_elements || !home->can_fetch_ahead(chunk)) return;
      if (!fetch_ahead(chunk, cache.take_slot_ahead(now, p - first + 1, reserved))) return;
    }
  }
}

// Where fetches ahead are decided, what leaves leaves for them.
void Offloader::Parts::prefetch_as_prescribed() {
  while (const Decision* next = decisions.prescribed()) {
    const bool leaves = next->kind == DecisionKind::evict || next->kind == DecisionKind::bypass;
    if (!leaves && next->kind != DecisionKind::ahead) return;
    if (next->number >= space.chunk_count()) decisions.refuse("there is no such chunk");
    const ChunkId chunk{static_cast<uint32_t>(next->number)};
    if (leaves) {
      if (!cache.make_leave(chunk)) decisions.refuse("the chunk that is to leave is not there, or in use");
      continue;
    }
    if (cache.param_state(chunk) != ChunkState::absent || gradients->is_displaced(chunk))
      decisions.refuse("the chunk that is to come cannot");
    if (!fetch_ahead(chunk, cache.take_unused()))
      decisions.refuse("no slot is free for the chunk that is to come");
  }
}

bool Offloader::Parts::fetch_ahead(ChunkId chunk, CacheSlot* slot) {
  if (slot == nullptr) return false;
  decisions.made(DecisionKind::ahead, index_of(chunk));
  home->start_fetch(chunk, cache.begin_fetch(chunk, *slot));
  ++counters.fetch_count;
  return true;
}

void Offloader::Parts::wait_for_chunks() {
  const uint64_t start = clock.now_ns();
  for (const ChunkId chunk : chunks) {
    if (unsettled[index_of(chunk)]) wait_updated(chunk);
    const Event* const arriving =
        home->placement() == Placement::none ? &cache.param_slot(chunk).in : cache.arriving(chunk);
    if (arriving != nullptr) home->wait_arrived(chunk, *arriving);
    if (home->placement() == Placement::none) arriving->wait();
    cache.attach_param(chunk);
    home->fetch_finished(chunk);
    settle(chunk);
  }
  counters.fetch_wait_ns += clock.now_ns() - start;
}

void Offloader::Parts::close_gradients() {
  for (const ChunkId chunk : chunks) {
    if (space.section_of(chunk).trainable) cache.unpin_gradient(chunk);
  }
  for (const TensorId tensor : tensors) {
    if (!space.tensor(tensor).trainable ||
        ++backward_uses[index_of(tensor)] < space.tensor(tensor).backward_uses)
      continue;
    states.change(tensor, TensorState::grad_ready);
    runs.complete(tensor, order.micro_batch());
  }
  for (const ChunkId chunk : chunks) {
    if (cache.has_gradient(chunk) && runs.is_complete(chunk, order.micro_batch()) &&
        !runs.has_landed(chunk, order.micro_batch()))
      land(chunk);
  }
}

// What of the chunk's gradient is complete.
void Offloader::Parts::land(ChunkId chunk) {
  note_tensors_landing(chunk);
  const GradientLanding leaving = runs.take(chunk, order.micro_batch());
  if (cache.has_gradient(chunk)) {
    std::erase(holding_gradients, chunk);
    gradients->land(leaving);
  } else {
    gradients->land_zero(leaving);
  }
  if (leaving.ends && lands_for_update()) note_landing(chunk);
}

// A tensor is reducing once the gradients of all its chunks are on their way. Where the step's next
// micro-batch is open already, the tensor is ready for it.
void Offloader::Parts::note_tensors_landing(ChunkId chunk) {
  const std::span<const TensorId> held = space.tensors_of(chunk);
  for (size_t i = 0; i < held.size(); ++i) {
    const TensorId tensor = held[i];
    if (!runs.is_pending(chunk, i) || --unlanded_chunks[index_of(tensor)] > 0) continue;
    if (states.state(tensor) == TensorState::grad_ready) states.change(tensor, TensorState::reducing);
    if (!options.layer_major || order.micro_batch() + 1 == options.accumulation_steps) continue;
    unlanded_chunks[index_of(tensor)] = space.place(tensor).chunk_count;
    backward_uses[index_of(tensor)] = 0;
    if (states.state(tensor) == TensorState::reducing) states.change(tensor, TensorState::hold);
  }
}

// The uses that follow are another micro-batch's: what is complete of this one makes room for it. Of what is
// not, the other one would need a second slot.
void Offloader::Parts::land_open_gradients() {
  while (!holding_gradients.empty()) {
    const ChunkId chunk = holding_gradients.front();
    for (const TensorId tensor : space.tensors_of(chunk)) {
      if (backward_uses[index_of(tensor)] == 0 || runs.is_complete(tensor, order.micro_batch())) continue;
      throw Error(
          ErrorKind::misuse,
          {"cannot go on with another micro-batch than that of", space.tensor(tensor).name,
           fmt::format("it has had {} of {} backward uses", backward_uses[index_of(tensor)],
                       space.tensor(tensor).backward_uses),
           "where micro-batches are open together, let the backward uses of a tensor follow each other"});
    }
    land(chunk);
  }
}

// What the micro-batches that were open did not use has a gradient of zero.
void Offloader::Parts::complete_unused_gradients() {
  if (options.layer_major) {
    land_open_gradients();
    order.select_last_micro_batch();
  }
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorState state = states.state(TensorId{t});
    if (!space.tensor(TensorId{t}).trainable) continue;
    if (state == TensorState::hold_after_forward || state == TensorState::hold_after_backward) {
      states.change(TensorId{t}, TensorState::grad_ready);
    }
    if (!runs.is_complete(TensorId{t}, order.micro_batch())) runs.complete(TensorId{t}, order.micro_batch());
  }
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable && !runs.has_landed(ChunkId{c}, order.micro_batch()))
      land(ChunkId{c});
  }
}

void Offloader::Parts::reset_step() {
  runs.begin_step();
  holding_gradients.clear();
  for (uint32_t t = 0; t < space.tensor_count(); ++t)
    unfinished_chunks[t] = space.place(TensorId{t}).chunk_count;
  reset_micro_batch();
}

void Offloader::Parts::reset_micro_batch() {
  std::fill(backward_uses.begin(), backward_uses.end(), 0);
  for (uint32_t t = 0; t < space.tensor_count(); ++t)
    unlanded_chunks[t] = space.place(TensorId{t}).chunk_count;
}

void Offloader::Parts::change_trainable(TensorState to) {
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorId tensor{t};
    if (space.tensor(tensor).trainable && states.state(tensor) != to) states.change(tensor, to);
  }
}

void Offloader::Parts::throw_landing_failure() {
  if (landing_failure != nullptr) std::rethrow_exception(std::exchange(landing_failure, nullptr));
}

void Offloader::Parts::drop_gradients() {
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (cache.has_gradient(ChunkId{c})) cache.drop_gradient(ChunkId{c});
  }
}

void Offloader::Parts::forget_device_copies(StaleParams stale) {
  if (home->placement() != Placement::none) cache.drop_params(stale);
}

}  // namespace terrace
