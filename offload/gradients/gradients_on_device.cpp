#include <terrace/offload/gradients/gradients_on_device.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// What ranks exchange on devices is there already.
std::span<std::byte> memory_for_host_parts(const RunContext& run) {
  const uint64_t bytes = exchange_on_devices(run.options) ? 0 : run.plan.device_incoming_bytes;
  return bytes > 0 ? run.device.allocate_work_memory(bytes) : std::span<std::byte>();
}

}  // namespace

GradientsOnDevice::GradientsOnDevice(const RunContext& run, DeviceCache& cache,
                                     GradientArithmetic& arithmetic, const AccumulationRules& rules)
    : space_(run.space),
      device_(run.device),
      cache_(cache),
      arithmetic_(arithmetic),
      rules_(rules),
      incoming_(memory_for_host_parts(run)),
      opens_and_closes_(run.device.strict() && !pulls(run.options)),
      accumulators_(run.space.chunk_count()) {
  const MemoryPlan& plan = run.plan;
  if (!rules.accumulates || plan.device_accumulator_slots == 0) return;
  const std::vector<DeviceSlot> slots = device_.create_slots(
      plan.accumulator_slot_bytes, plan.device_accumulator_slots, "gradient accumulators");
  std::byte* address = device_.reserve_addresses(plan.device_accumulator_slots * plan.accumulator_slot_bytes);
  size_t next = 0;
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (!space_.section_of(ChunkId{c}).trainable) continue;
    accumulators_[c] = {slots[next++], address};
    address += plan.accumulator_slot_bytes;
    if (!opens_and_closes_) device_.attach(accumulators_[c].slot, accumulators_[c].address);
  }
}

void GradientsOnDevice::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  if (own.runs.empty()) {
    if (own.ends) arithmetic_.sums().note_complete(own.chunk);
    return;
  }
  if (gradient != nullptr && !incoming_.empty()) gradient = bring(own, gradient);
  std::byte* const to = this->gradient(own.chunk);
  open(own.chunk);
  if (gradient == to) {
    arithmetic_.take(own.chunk, type(own.chunk), to);
  } else {
    arithmetic_.add(own, to, gradient, is_last && rules_.is_last(own));
  }
  close(own.chunk);
}

const std::byte* GradientsOnDevice::bring(const GradientLanding& own, const std::byte* gradient) {
  const uint64_t element_bytes = bytes_of(own.is_group_sum ? rules_.type : space_.section_of(own.chunk).type);
  const uint64_t first = own.runs.front().first_element * element_bytes;
  const uint64_t end = own.runs.back().end() * element_bytes;
  DeviceCopy arrived;
  arrived.begin(to_device_copy("gradients", own.chunk));
  device_.copy_to_work(
      incoming_.data() + first, gradient + first, end - first, nullptr, arrived,
      to_device_note(cache_.watch().events(), TransferRole::grad, TransferReason::step, index_of(own.chunk)));
  h2d_bytes_ += end - first;
  arrived.wait(cache_.watch());
  return incoming_.data();
}

void GradientsOnDevice::add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish) {
  const ChunkId chunk = own.chunk;
  if (rules_.accumulates) {
    if (own.runs.empty() || rules_.changes_with_zeros(own)) add(own, nullptr, true);
    return;
  }
  // Other parts of the gradient were handed over before, and what lies beside them is zero.
  if (!landing.begins) return add(own, gradient(chunk), true);
  arithmetic_.sums().set_zero(chunk);
  const Schedule unknown;
  CacheSlot* const slot = cache_.take_slot(EvictionContext{unknown, kNever});
  TERRACE_ASSERT(slot != nullptr, "the plan has a slot for every gradient that stays on the device");
  cache_.begin_gradient(chunk, *slot);
  arithmetic_.sums().note_complete(chunk);
}

bool GradientsOnDevice::take(const GradientLanding& landing, const HandedPart& part,
                             const EvictionContext& now, Finish) {
  h2d_bytes_ += cache_.fill_gradient(landing.chunk, landing.runs.front().first_element, part.gradient,
                                     part.element_count, now);
  return rules_.accumulates || landing.ends;
}

void GradientsOnDevice::finish(bool ends_step) {
  if (ends_step) arithmetic_.finish_step(*this);
}

std::byte* GradientsOnDevice::gradient(ChunkId chunk) {
  if (!rules_.accumulates) return cache_.gradient_address(chunk);
  TERRACE_ASSERT(accumulators_[index_of(chunk)].address != nullptr,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return accumulators_[index_of(chunk)].address;
}

void GradientsOnDevice::open(ChunkId chunk) {
  if (!rules_.accumulates) return cache_.pin_gradient(chunk);
  const Accumulator& accumulator = accumulators_[index_of(chunk)];
  if (opens_and_closes_) device_.attach(accumulator.slot, accumulator.address);
}

void GradientsOnDevice::close(ChunkId chunk) {
  if (!rules_.accumulates) return cache_.unpin_gradient(chunk);
  if (opens_and_closes_) device_.detach(accumulators_[index_of(chunk)].slot);
}

void GradientsOnDevice::release(ChunkId chunk) {
  arithmetic_.sums().forget(chunk);
  if (!rules_.accumulates) cache_.drop_gradient(chunk);
}

}  // namespace terrace
