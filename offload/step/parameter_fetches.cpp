#include <terrace/offload/step/parameter_fetches.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/plan/budget_shortage.h>

namespace terrace {

ParameterFetches::ParameterFetches(const RunContext& run, const StateHomes& homes, DeviceCache& cache,
                                   UpdateRunner& updates, const EarlyUpdate& early_update,
                                   Decisions& decisions, std::function<void()> finish_update)
    : run_(run),
      homes_(homes),
      cache_(cache),
      updates_(updates),
      early_update_(early_update),
      decisions_(decisions),
      finish_update_(std::move(finish_update)),
      ahead_(run.space.chunk_count()) {}

// --- Fetches for a use ---

CacheSlot& ParameterFetches::require_slot(std::string_view role, const OpenUse& use,
                                          const EvictionContext& now) {
  if (CacheSlot* slot = cache_.take_slot(now)) return *slot;
  if (updates_.is_running()) {  // chunks that are being updated cannot leave before
    finish_update_();
    if (CacheSlot* slot = cache_.take_slot(now)) return *slot;
  }
  refuse(role, use);
}

// What the open uses hold, and the one that cannot begin: its gradients too, where leases write these.
void ParameterFetches::refuse(std::string_view role, const OpenUse& use) const {
  const MemoryPlan& plan = run_.plan;
  uint64_t gradients = cache_.gradient_slot_count();
  if (use.kind == UseKind::backward && run_.options.gradients == GradientOrigin::leases)
    gradients += std::ranges::count_if(use.chunks, [this](ChunkId chunk) {
      return run_.space.section_of(chunk).trainable && !cache_.has_gradient(chunk);
    });
  const uint64_t slots =
      std::max<uint64_t>(cache_.pinned_count() + std::max<uint64_t>(gradients, plan.device_gradient_slots),
                         cache_.slot_count() + 1);
  const uint64_t needed_bytes = plan.device_bytes + (slots - cache_.slot_count()) * plan.slot_bytes;
  throw ShortageError(
      {fmt::format("no device memory is left for the {} of an operation", role), use.operation,
       fmt::format("what is in use at once takes {} chunk slots of {} bytes, and there are {}", slots,
                   plan.slot_bytes, cache_.slot_count()),
       fmt::format("raise the device budget to {} bytes at least, use smaller chunks, or lease "
                   "fewer tensors together",
                   needed_bytes)},
      {{"device", run_.options.device_budget_bytes, needed_bytes}});
}

void ParameterFetches::fetch_missing(OpenUse& use, const EvictionContext& now) {
  // What is handed over while uses are open finds its slots.
  if (cache_.pinned_count() + run_.plan.device_gradient_slots > cache_.slot_count() &&
      !run_.params_stay_on_device())
    refuse("parameters", use);
  for (const ChunkId chunk : use.chunks) {
    const ChunkState state = cache_.param_state(chunk);
    ++use.chunks_found[state == ChunkState::resident ? 0 : state == ChunkState::fetching ? 1 : 2];
    if (state == ChunkState::absent) {
      CacheSlot& slot = require_slot("parameters", use, now);
      decisions_.made(DecisionKind::fetch, index_of(chunk));
      homes_.params.start_fetch(chunk, cache_.begin_fetch(chunk, slot));
      cache_.note_demand(chunk);
      ++fetch_count_;
      ++demand_fetch_count_;
    }
    cache_.note_use(chunk);
  }
}

void ParameterFetches::pin(const OpenUse& use) {
  for (const ChunkId chunk : use.chunks) {
    updates_.send_updated(chunk);
    cache_.pin_param(chunk);
  }
}

void ParameterFetches::unpin(const OpenUse& use) {
  for (const ChunkId chunk : use.chunks) cache_.unpin_param(chunk);
}

bool ParameterFetches::are_there(const OpenUse& use) const {
  return std::ranges::all_of(use.chunks, [&](ChunkId chunk) {
    const DeviceCopy* const arriving = cache_.arriving(chunk);
    return !updates_.is_unsettled(chunk) && cache_.param_state(chunk) != ChunkState::absent &&
           (arriving == nullptr || arriving->done());
  });
}

void ParameterFetches::wait_for_chunks(const OpenUse& use) {
  const uint64_t start = clock_.now_ns();
  const bool on_device = run_.params_stay_on_device();
  for (const ChunkId chunk : use.chunks) {
    if (updates_.is_unsettled(chunk)) updates_.wait_updated(chunk);
    const DeviceCopy* const arriving = cache_.arriving(chunk);
    if (arriving != nullptr) homes_.params.wait_arrived(chunk, *arriving);
    if (on_device) arriving->wait();
    cache_.attach_param(chunk);
    homes_.params.note_use(chunk, cache_.param_address(chunk));
    homes_.params.fetch_finished(chunk);
    updates_.settle(chunk);
  }
  wait_ns_ += clock_.now_ns() - start;
}

// --- Fetches ahead ---

// Parameters that a gradient has displaced are not there to be fetched. Those that an update within the step
// has taken have no use any more, whatever the schedule says: a copy would hold its slot, behind the update
// or with parameters of before it.
bool ParameterFetches::can_come_ahead(ChunkId chunk) const {
  return !homes_.gradients.is_displaced(chunk) && !early_update_.has_taken(chunk);
}

void ParameterFetches::fetch_ahead(const Schedule& schedule, uint32_t position,
                                   std::span<const ChunkId> leased) {
  if (run_.params_stay_on_device()) return send_updated_ahead(schedule, position);
  if (run_.options.prefetch_uses == 0) return;
  if (run_.options.policy != PolicyKind::opt) return fetch_by_policy({schedule, position});
  fetch_by_opt(schedule, position, leased);
}

// Parameters that stay on the device go there shortly before they are needed: by a copy that waits for their
// update. Those of an update within the step go when it is over, since the states of chunks that the device
// updates would be queued behind that copy.
void ParameterFetches::send_updated_ahead(const Schedule& schedule, uint32_t position) {
  if (position == kNever) return;
  const uint64_t end =
      std::min<uint64_t>(schedule.size(), uint64_t{position} + 1 + run_.options.prefetch_uses);
  for (uint64_t p = uint64_t{position} + 1; p < end; ++p) {
    for (const ChunkId chunk : schedule.use(static_cast<uint32_t>(p)).chunks) {
      if (!early_update_.has_taken(chunk)) updates_.send_updated(chunk);
    }
  }
}

void ParameterFetches::fetch_by_opt(const Schedule& schedule, uint32_t position,
                                    std::span<const ChunkId> leased) {
  const FetchPlan::Now now = {schedule, position,          cache_.slot_count(), cache_.gradient_slot_count(),
                              leased,   cache_.residents()};
  ahead_.plan(now, run_.options.prefetch_uses, [this](ChunkId chunk) { return can_come_ahead(chunk); });
  uint64_t elements = 0;
  size_t next_victim = 0;
  for (const FetchPlan::Fetch& fetch : ahead_.fetches()) {
    // The chunk is still here: the plan had it leave earlier, and it could not.
    if (cache_.param_state(fetch.chunk) != ChunkState::absent) return;
    elements += run_.space.chunk(fetch.chunk).elements;
    if (elements > run_.options.prefetch_elements || !homes_.params.can_fetch_ahead(fetch.chunk)) return;
    CacheSlot* slot = cache_.take_unused();
    while (slot == nullptr && next_victim < ahead_.victims().size()) {
      if (cache_.make_leave(ahead_.victims()[next_victim++])) slot = cache_.take_unused();
    }
    if (!start_ahead(fetch.chunk, slot)) return;
  }
}

// Under another rule a victim leaves only if it is needed later than the chunk that is fetched.
void ParameterFetches::fetch_by_policy(const EvictionContext& now) {
  const uint32_t first = now.position == kNever ? 0 : now.position + 1;
  const uint32_t held = cache_.gradient_slot_count();
  uint64_t elements = 0;
  uint32_t reserved = 0;  // slots that gradients of the uses in between will take
  const uint64_t end =
      std::min<uint64_t>(now.schedule.size(), static_cast<uint64_t>(first) + run_.options.prefetch_uses);
  for (uint32_t p = first; p < end; ++p) {
    const ScheduledUse& use = now.schedule.use(p);
    reserved = std::max(reserved, use.occupied_slots - std::min(use.occupied_slots, held));
    for (const ChunkId chunk : use.chunks) {
      if (cache_.param_state(chunk) != ChunkState::absent || !can_come_ahead(chunk)) continue;
      elements += run_.space.chunk(chunk).elements;
      if (elements > run_.options.prefetch_elements || !homes_.params.can_fetch_ahead(chunk)) return;
      if (!start_ahead(chunk, cache_.take_slot_ahead(now, p - first + 1, reserved))) return;
    }
  }
}

bool ParameterFetches::start_ahead(ChunkId chunk, CacheSlot* slot) {
  if (slot == nullptr) return false;
  decisions_.made(DecisionKind::ahead, index_of(chunk));
  updates_.send_updated(chunk);
  homes_.params.start_fetch(chunk, cache_.begin_fetch(chunk, *slot));
  ++fetch_count_;
  return true;
}

void ParameterFetches::count(OffloadCounters& counters) const {
  counters.fetch_count += fetch_count_;
  counters.demand_fetch_count += demand_fetch_count_;
  counters.fetch_wait_ns += wait_ns_;
}

}  // namespace terrace
