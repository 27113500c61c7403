#include <terrace/offload/gradients/accumulated_on_device.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

AccumulatedOnDevice::AccumulatedOnDevice(const FlatSpace& space, const MemoryPlan& plan, Device& device,
                                         DeviceCache& cache, std::unique_ptr<GradientArithmetic> arithmetic,
                                         std::vector<std::byte*> landing_slots,
                                         const AccumulationRules& rules,
                                         std::unique_ptr<GradientStaging> exchange)
    : GradientStore(std::move(arithmetic), std::move(landing_slots)),
      space_(space),
      device_(device),
      cache_(cache),
      rules_(rules),
      incoming_(plan.device_incoming_bytes > 0 ? device.allocate_work_memory(plan.device_incoming_bytes)
                                               : std::span<std::byte>()),
      exchange_(std::move(exchange)),
      accumulators_(space.chunk_count()) {
  if (plan.device_accumulator_slots == 0) return;
  const std::vector<DeviceSlot> slots = device.create_slots(
      plan.accumulator_slot_bytes, plan.device_accumulator_slots, "gradient accumulators");
  std::byte* address = device.reserve_addresses(plan.device_accumulator_slots * plan.accumulator_slot_bytes);
  size_t next = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) continue;
    accumulators_[c] = {slots[next++], address};
    address += plan.accumulator_slot_bytes;
    if (!device.strict()) device.attach(accumulators_[c].slot, accumulators_[c].address);
  }
}

void AccumulatedOnDevice::land(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  sums().forget(chunk);
  if (exchange_ != nullptr) {
    exchange_->make_room(adding());
    return exchange_->land(landing);
  }
  open(chunk);
  cache_.pin_gradient(chunk);
  arithmetic_->add(landing, gradient(chunk), cache_.gradient_address(chunk), rules_.is_last(landing));
  cache_.unpin_gradient(chunk);
  close(chunk);
  cache_.drop_gradient(chunk);
}

void AccumulatedOnDevice::land_from(const GradientLanding& landing, const HandedPart& part,
                                    const EvictionContext& now) {
  if (exchange_ != nullptr) {
    sums().forget(landing.chunk);
    exchange_->make_room(adding());
    exchange_->land_from(landing, part);
    return;
  }
  h2d_bytes_ += cache_.fill_gradient(landing.chunk, landing.runs.front().first_element, part.gradient,
                                     part.element_count, now);
  land(landing);
}

void AccumulatedOnDevice::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  if (own.runs.empty()) {
    if (own.ends) sums().note_complete(own.chunk);
    return;
  }
  if (gradient != nullptr && !incoming_.empty()) gradient = bring(own, gradient);
  open(own.chunk);
  arithmetic_->add(own, this->gradient(own.chunk), gradient, is_last && rules_.is_last(own));
  close(own.chunk);
}

const std::byte* AccumulatedOnDevice::bring(const GradientLanding& own, const std::byte* gradient) {
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

void AccumulatedOnDevice::land_zero(const GradientLanding& landing) {
  if (exchange_ == nullptr) {
    if (rules_.changes_with_zeros(landing)) add(landing, nullptr, true);
    return;
  }
  exchange_->finish(landing.chunk, adding());
  const GradientLanding own = exchange_->own_part(landing);
  if (own.runs.empty() || rules_.changes_with_zeros(own)) add(own, nullptr, true);
}

void AccumulatedOnDevice::poll() {
  if (exchange_ == nullptr) return;
  exchange_->poll([](ChunkId) { return true; }, adding());
}

void AccumulatedOnDevice::finish_micro_batch(bool ends_step) {
  if (exchange_ != nullptr) exchange_->finish_all(adding());
  if (ends_step) arithmetic_->finish_step(*this);
}

std::byte* AccumulatedOnDevice::gradient(ChunkId chunk) {
  TERRACE_ASSERT(accumulators_[index_of(chunk)].address != nullptr,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return accumulators_[index_of(chunk)].address;
}

void AccumulatedOnDevice::open(ChunkId chunk) {
  const Accumulator& accumulator = accumulators_[index_of(chunk)];
  if (device_.strict()) device_.attach(accumulator.slot, accumulator.address);
}

void AccumulatedOnDevice::close(ChunkId chunk) {
  if (device_.strict()) device_.detach(accumulators_[index_of(chunk)].slot);
}

}  // namespace terrace
