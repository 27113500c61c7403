#include <terrace/offload/device/device_cache.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

DeviceCache::DeviceCache(const FlatSpace& space, Device& device, const MemoryPlan& plan, Placement parameters,
                         PolicyKind policy, TensorStates& states, StepWatch& watch, Decisions& decisions)
    : space_(space),
      device_(device),
      params_may_leave_(parameters != Placement::none || plan.device_share_bytes > 0),
      states_(states),
      watch_(watch),
      decisions_(decisions),
      policy_(make_policy(policy, space.chunk_count())),
      slot_bytes_(plan.slot_bytes),
      slot_count_(plan.device_slots),
      slots_(std::make_unique<CacheSlot[]>(plan.device_slots)),
      params_(space.chunk_count()),
      gradients_(space.chunk_count()),
      param_of_slot_(plan.device_slots, kNone) {
  param_base_ = device.reserve_addresses(space.chunk_count() * slot_bytes_);
  gradient_base_ = device.reserve_addresses(space.chunk_count() * slot_bytes_);
  const std::vector<DeviceSlot> ids =
      device.create_slots(slot_bytes_, slot_count_, "parameters and gradients");
  for (uint32_t s = 0; s < slot_count_; ++s) slots_[s].id = ids[s];
  free_.reserve(slot_count_);
  for (uint32_t s = slot_count_; s-- > 0;) free_.push_back(s);
  candidates_.reserve(slot_count_);
  residents_.reserve(slot_count_);
  leaving_.reserve(slot_count_);
  last_operation_.reserve(256);
  if (!device.strict()) return;
  for (std::byte* base : {param_base_, gradient_base_}) {
    guards_.push_back(std::make_unique<StrictGuard>(
        std::span<const std::byte>(base, space.chunk_count() * slot_bytes_), *this));
  }
}

DeviceCache::~DeviceCache() {
  drain();
}

void DeviceCache::drain() const noexcept {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    slots_[s].in.wait_done();
    slots_[s].out.wait_done();
    slots_[s].fence.wait_done();
  }
}

void DeviceCache::set_state(ChunkId chunk, ChunkState state) {
  ParamEntry& entry = params_[index_of(chunk)];
  TERRACE_ASSERT(
      is_legal(entry.state, state),
      fmt::format("chunk {} cannot go from {} to {}", index_of(chunk), name_of(entry.state), name_of(state)));
  entry.state = state;
}

CacheSlot& DeviceCache::begin_fetch(ChunkId chunk, CacheSlot& slot) {
  set_state(chunk, ChunkState::fetching);
  hold_param(chunk, slot);
  if (is_recording(watch_.events())) params_[index_of(chunk)].asked_at_ns = watch_.events()->now_ns();
  return slot;
}

std::optional<DeviceCache::Asked> DeviceCache::take_asked(ChunkId chunk) {
  ParamEntry& entry = params_[index_of(chunk)];
  if (entry.asked_at_ns == 0) return std::nullopt;
  return Asked{std::exchange(entry.asked_at_ns, 0), entry.on_demand};
}

void DeviceCache::begin_in_place(ChunkId chunk, CacheSlot& slot) {
  slot.out.wait(watch_);
  set_state(chunk, ChunkState::resident);
  hold_param(chunk, slot);
}

void DeviceCache::hold_param(ChunkId chunk, CacheSlot& slot) {
  params_[index_of(chunk)].slot = number_of(slot);
  params_[index_of(chunk)].asked_at_ns = 0;
  params_[index_of(chunk)].on_demand = false;
  params_[index_of(chunk)].uses = 0;
  param_of_slot_[number_of(slot)] = index_of(chunk);
  residents_.insert(std::ranges::lower_bound(residents_, chunk), chunk);
  ++param_slot_count_;
  note_slot(TraceKind::place, TransferRole::param, chunk);
}

void DeviceCache::attach_param(ChunkId chunk) {
  ParamEntry& entry = params_[index_of(chunk)];
  if (entry.state == ChunkState::fetching) {
    if (std::exception_ptr failure = finish_fetch(chunk)) std::rethrow_exception(failure);
  }
  TERRACE_ASSERT(entry.state == ChunkState::resident,
                 fmt::format("chunk {} is {} and cannot be used", index_of(chunk), name_of(entry.state)));
  if (!entry.attached) {
    end_filling(slots_[entry.slot]);
    if (const std::exception_ptr failure = slots_[entry.slot].in.failure()) std::rethrow_exception(failure);
    device_.attach(slots_[entry.slot].id, param_address(chunk));
    entry.attached = true;
  }
}

void DeviceCache::unpin_param(ChunkId chunk) {
  ParamEntry& entry = params_[index_of(chunk)];
  TERRACE_ASSERT(entry.pins > 0, fmt::format("chunk {} is not pinned", index_of(chunk)));
  if (--entry.pins > 0) return;
  --pinned_count_;
  if (device_.strict()) detach_param(chunk);
}

void DeviceCache::detach_param(ChunkId chunk) {
  ParamEntry& entry = params_[index_of(chunk)];
  TERRACE_ASSERT(entry.pins == 0,
                 fmt::format("chunk {} is pinned and its memory cannot move", index_of(chunk)));
  if (entry.slot != kNone) end_filling(slots_[entry.slot]);
  if (entry.attached) device_.detach(slots_[entry.slot].id);
  entry.attached = false;
}

void DeviceCache::drop_param(ChunkId chunk) {
  detach_param(chunk);
  leave_slot(chunk);
  set_state(chunk, ChunkState::absent);
}

void DeviceCache::drop_stale_param(ChunkId chunk) {
  if (param_state(chunk) == ChunkState::fetching) finish_fetch(chunk);
  if (param_state(chunk) != ChunkState::resident) return;
  decisions_.made(DecisionKind::stale, index_of(chunk));
  drop_param(chunk);
}

void DeviceCache::leave_slot(ChunkId chunk) {
  ParamEntry& entry = params_[index_of(chunk)];
  param_of_slot_[entry.slot] = kNone;
  residents_.erase(std::ranges::lower_bound(residents_, chunk));
  give_back(slots_[entry.slot]);
  entry.slot = kNone;
  --param_slot_count_;
  note_slot(TraceKind::leave, TransferRole::param, chunk);
}

void DeviceCache::drop_params(StaleParams stale) {
  settle_fetches();
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (stale == StaleParams::all || space_.section_of(ChunkId{c}).trainable) drop_stale_param(ChunkId{c});
  }
}

CacheSlot& DeviceCache::param_slot(ChunkId chunk) {
  const ParamEntry& entry = params_[index_of(chunk)];
  TERRACE_ASSERT(entry.slot != kNone, fmt::format("chunk {} has no slot", index_of(chunk)));
  return slots_[entry.slot];
}

void DeviceCache::begin_gradient(ChunkId chunk, CacheSlot& slot) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  TERRACE_ASSERT(entry.slot == kNone, fmt::format("chunk {} has a gradient already", index_of(chunk)));
  slot.out.wait(watch_);
  decisions_.made(DecisionKind::gradient, index_of(chunk));
  device_.attach(slot.id, gradient_address(chunk));
  entry = {number_of(slot), 0, true};
  device_.zero_in_order(slot.id, 0, slot_bytes_);
  ++gradient_slot_count_;
  note_slot(TraceKind::place, TransferRole::grad, chunk);
}

void DeviceCache::pin_gradient(ChunkId chunk) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  TERRACE_ASSERT(entry.slot != kNone, fmt::format("chunk {} has no gradient", index_of(chunk)));
  if (!entry.attached) device_.attach(slots_[entry.slot].id, gradient_address(chunk));
  entry.attached = true;
  ++entry.pins;
}

void DeviceCache::unpin_gradient(ChunkId chunk) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  TERRACE_ASSERT(entry.pins > 0, fmt::format("the gradient of chunk {} is not pinned", index_of(chunk)));
  if (--entry.pins > 0 || !device_.strict()) return;
  device_.detach(slots_[entry.slot].id);
  entry.attached = false;
}

uint64_t DeviceCache::fill_gradient(ChunkId chunk, uint64_t first_element, const std::byte* elements,
                                    uint64_t count, const EvictionContext& now) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  if (entry.slot == kNone) {
    CacheSlot* const taken = take_slot(now);
    if (taken == nullptr)
      throw Error(ErrorKind::capacity,
                  {"no device memory is left for a gradient that is handed over",
                   fmt::format("chunk {}", index_of(chunk)),
                   fmt::format("leases hold all {} chunk slots", slot_count_),
                   "raise the device budget, or hand gradients over while fewer tensors are leased"});
    begin_gradient(chunk, *taken);
  }
  CacheSlot& slot = slots_[entry.slot];
  if (entry.attached && entry.pins == 0) device_.detach(slot.id);
  entry.attached = entry.pins > 0;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  slot.in.begin(to_device_copy("gradients", chunk));
  device_.copy_to_device(
      slot.id, first_element * element_bytes, elements, count * element_bytes, nullptr, slot.in,
      to_device_note(watch_.events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  slot.in.wait(watch_);
  return count * element_bytes;
}

CacheSlot& DeviceCache::release_gradient(ChunkId chunk) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  TERRACE_ASSERT(entry.slot != kNone && entry.pins == 0,
                 fmt::format("the gradient of chunk {} cannot leave: {} pins", index_of(chunk), entry.pins));
  decisions_.made(DecisionKind::landed, index_of(chunk));
  CacheSlot& slot = slots_[entry.slot];
  if (entry.attached) device_.detach(slot.id);
  leaving_.push_back(entry.slot);
  entry = {};
  --gradient_slot_count_;
  note_slot(TraceKind::leave, TransferRole::grad, chunk);
  return slot;
}

void DeviceCache::drop_gradient(ChunkId chunk) {
  GradientEntry& entry = gradients_[index_of(chunk)];
  TERRACE_ASSERT(
      entry.slot != kNone && entry.pins == 0,
      fmt::format("the gradient of chunk {} cannot be dropped: {} pins", index_of(chunk), entry.pins));
  decisions_.made(DecisionKind::landed, index_of(chunk));
  if (entry.attached) device_.detach(slots_[entry.slot].id);
  give_back(slots_[entry.slot]);
  entry = {};
  --gradient_slot_count_;
  note_slot(TraceKind::leave, TransferRole::grad, chunk);
}

void DeviceCache::give_back(CacheSlot& slot) {
  if (device_.strict()) device_.poison(slot.id);
  free_.push_back(number_of(slot));
}

std::byte* DeviceCache::begin_filling(CacheSlot& slot) {
  TERRACE_ASSERT(slot.filling == SlotFilling::none, "one fills a slot at a time");
  slot.filling = SlotFilling::by_others;
  return device_.begin_fills(slot.id, 1, nullptr);
}

void DeviceCache::begin_copying_in(CacheSlot& slot) {
  TERRACE_ASSERT(slot.filling == SlotFilling::none, "one fills a slot at a time");
  slot.filling = SlotFilling::by_copies;
}

void DeviceCache::end_filling(CacheSlot& slot) {
  const SlotFilling filling = std::exchange(slot.filling, SlotFilling::none);
  if (filling == SlotFilling::none) return;
  slot.in.wait_done(watch_);
  if (filling == SlotFilling::by_others) device_.end_fill(slot.id);
}

CacheSlot* DeviceCache::take_unused() {
  if (!free_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    return &slots_[slot];
  }
  if (!leaving_.empty()) {
    const uint32_t slot = leaving_.front();
    leaving_.erase(leaving_.begin());
    return &slots_[slot];
  }
  return nullptr;
}

bool DeviceCache::may_leave(ChunkId chunk) const {
  const ParamEntry& entry = params_[index_of(chunk)];
  return params_may_leave_ && entry.state == ChunkState::resident && entry.pins == 0 &&
         states_.all_hold(space_.tensors_of(chunk));
}

void DeviceCache::collect_candidates() {
  candidates_.clear();
  for (const ChunkId chunk : residents_) {
    if (may_leave(chunk)) candidates_.push_back(chunk);
  }
}

CacheSlot* DeviceCache::take_slot(const EvictionContext& context) {
  if (CacheSlot* unused = take_unused()) return unused;
  collect_candidates();
  if (candidates_.empty()) {
    settle_fetches();
    collect_candidates();
  }
  if (candidates_.empty()) return nullptr;
  return make_leave(policy_->choose_victim(candidates_, context)) ? take_unused() : nullptr;
}

bool DeviceCache::make_leave(ChunkId chunk) {
  if (!may_leave(chunk)) return false;
  const bool passed_through = params_[index_of(chunk)].uses == 1;
  decisions_.made(passed_through ? DecisionKind::bypass : DecisionKind::evict, index_of(chunk));
  ++eviction_count_;
  if (is_recording(watch_.events())) {
    TraceEvent event = watch_.events()->begun(TraceKind::evict);
    event.chunk = index_of(chunk);
    watch_.events()->record(event);
  }
  drop_param(chunk);
  return true;
}

CacheSlot* DeviceCache::take_slot_ahead(const EvictionContext& context, uint32_t distance,
                                        uint32_t reserved) {
  if (unused_slot_count() > reserved) return take_unused();
  collect_candidates();
  uint32_t available = unused_slot_count();
  for (const ChunkId chunk : candidates_) {
    available += context.schedule.distance_within_step(chunk, context.position) > distance ? 1 : 0;
  }
  if (available <= reserved) return nullptr;
  if (CacheSlot* unused = take_unused()) return unused;
  const ChunkId victim = policy_->choose_victim(candidates_, context);
  if (context.schedule.distance_within_step(victim, context.position) <= distance) return nullptr;
  return make_leave(victim) ? take_unused() : nullptr;
}

void DeviceCache::record_slots() const {
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (params_[c].slot != kNone) record_slot(TraceKind::place, TransferRole::param, ChunkId{c});
    if (gradients_[c].slot != kNone) record_slot(TraceKind::place, TransferRole::grad, ChunkId{c});
  }
}

void DeviceCache::record_slot(TraceKind kind, TransferRole role, ChunkId chunk) const {
  TraceEvent event = watch_.events()->begun(kind);
  event.role = role;
  event.chunk = index_of(chunk);
  event.counts = {param_slot_count_, gradient_slot_count_, static_cast<uint32_t>(leaving_.size())};
  watch_.events()->record(event);
}

const DeviceCopy* DeviceCache::arriving(ChunkId chunk) const {
  const ParamEntry& entry = params_[index_of(chunk)];
  const bool may_arrive =
      entry.state == ChunkState::fetching ||
      (entry.slot != kNone && (!params_may_leave_ || slots_[entry.slot].filling != SlotFilling::none));
  return may_arrive ? &slots_[entry.slot].in : nullptr;
}

// Ends a fetch: the chunk is resident afterwards, or absent, and then the failure is returned.
std::exception_ptr DeviceCache::finish_fetch(ChunkId chunk) {
  CacheSlot& slot = slots_[params_[index_of(chunk)].slot];
  if (!slot.in.done() && slot.read != nullptr) {
    constexpr auto kFromNvme = CopyName::Link::nvme_to_host;
    wait_done_watched(*slot.read, watch_, CopyName{"parameters", index_of(chunk), kFromNvme}.subject());
  }
  slot.in.wait_done(watch_);
  end_filling(slot);
  const std::exception_ptr failure = slot.in.failure();
  set_state(chunk, failure == nullptr ? ChunkState::resident : ChunkState::failed);
  if (failure == nullptr) return nullptr;
  leave_slot(chunk);
  set_state(chunk, ChunkState::absent);
  return failure;
}

void DeviceCache::settle_fetches() {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    const uint32_t chunk = param_of_slot_[s];
    if (chunk != kNone && params_[chunk].state == ChunkState::fetching) finish_fetch(ChunkId{chunk});
  }
}

void DeviceCache::describe(const std::byte* address, SignalSafeText& out) const noexcept {
  const bool in_params = address >= param_base_ && address < param_base_ + params_.size() * slot_bytes_;
  const auto offset = static_cast<uint64_t>(address - (in_params ? param_base_ : gradient_base_));
  const auto chunk = static_cast<uint32_t>(offset / slot_bytes_);
  const ChunkId id{chunk};
  const uint64_t element_bytes = bytes_of(space_.section_of(id).type);
  const uint64_t element = space_.chunk(id).first_element + offset % slot_bytes_ / element_bytes;
  out.text(in_params ? "parameters" : "gradient").text(" of chunk ").decimal(chunk);
  for (const TensorId tensor : space_.tensors_of(id)) {
    const TensorPlace& place = space_.place(tensor);
    if (element < place.first_element || element >= place.first_element + place.elements) continue;
    out.text(", tensor ")
        .text(space_.tensor(tensor).name)
        .text(" (")
        .text(name_of(states_.state(tensor)))
        .text(")");
  }
  if (in_params) out.text(", chunk ").text(name_of(params_[chunk].state));
  if (!in_params) out.text(gradients_[chunk].slot == kNone ? ", absent" : ", present");
  out.text(", last lease: ").text(last_operation_);
}

}  // namespace terrace
