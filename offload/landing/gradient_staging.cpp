#include <terrace/offload/landing/gradient_staging.h>

#include <cstring>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr const char* kWhat = "gradients";

}  // namespace

GradientStaging::GradientStaging(const FlatSpace& space, Device& device, DeviceCache& cache,
                                 const Slots& slots, std::unique_ptr<RankSum> sum)
    : space_(space),
      device_(device),
      cache_(cache),
      dry_(slots.dry),
      slots_(slots.memory.size()),
      sum_(std::move(sum)) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    slots_[s].memory = slots.memory[s];
    if (!slots.handed.empty()) slots_[s].handed.id = slots.handed[s];
    slots_[s].staged.slot = s;
    slots_[s].staged.runs.reserve(slots.most_runs);
  }
}

GradientStaging::~GradientStaging() {
  for (const Slot& slot : slots_) slot.copied.wait_done();
}

GradientStaging::Slot& GradientStaging::take(const GradientLanding& landing, std::byte* memory) {
  TERRACE_ASSERT(taken_ < slots_.size(), "a landing is handed on before its slot is taken again");
  Slot& slot = slot_of(taken_++);
  StagedLanding& staged = slot.staged;
  staged.memory = memory != nullptr ? memory : slot.memory;
  staged.runs.assign(landing.runs.begin(), landing.runs.end());
  staged.landing = landing;
  staged.landing.runs = staged.runs;
  staged.copied = &slot.copied;
  return slot;
}

// The device slot may be taken again before its copies are over. Where only the step thread waits for them,
// the wait then covers the later copies too. Other threads need an event that is for these copies alone, and
// an empty copy behind them says that the device slot is free.
void GradientStaging::land(const GradientLanding& landing, std::byte* place, Add add) {
  if (slots_.empty()) return land_within_device(landing, place, add);
  Slot& slot = take(landing, place);
  StagedLanding& staged = slot.staged;
  const ChunkId chunk = landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  CacheSlot& source = cache_.release_gradient(chunk);
  if (sum_->takes_from_device()) {
    staged.source = &source;
    return sum_->send(staged);
  }
  DeviceCopy& copied = sum_->has_others() ? slot.copied : source.out;
  staged.copied = &copied;
  copied.begin(to_host_copy(kWhat, chunk), static_cast<uint32_t>(staged.runs.size()));
  for (const GradientRun& run : staged.runs) {
    const uint64_t offset = run.first_element * element_bytes, bytes = run.element_count * element_bytes;
    d2h_bytes_ += bytes;
    device_.copy_to_host(
        staged.memory + offset, source.id, offset, bytes, nullptr, copied,
        from_device_note(cache_.watch().events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  }
  if (sum_->has_others()) {
    source.out.begin(to_host_copy(kWhat, chunk));
    device_.copy_to_host(staged.memory, source.id, 0, 0, nullptr, source.out);
  }
  sum_->send(staged);
}

void GradientStaging::land_within_device(const GradientLanding& landing, const std::byte* place, Add add) {
  const std::byte* const gradient = cache_.gradient_address(landing.chunk);
  cache_.pin_gradient(landing.chunk);
  add(landing, gradient, true);
  cache_.unpin_gradient(landing.chunk);
  if (gradient != place) cache_.drop_gradient(landing.chunk);
}

// The padding behind the part has no gradient.
void GradientStaging::land_part(const GradientLanding& landing, const HandedPart& part) {
  Slot& slot = take(landing, nullptr);
  const StagedLanding& staged = slot.staged;
  if (sum_->takes_from_device()) {
    fill(slot, part);
    return sum_->send(staged);
  }
  const uint64_t element_bytes = bytes_of(space_.section_of(landing.chunk).type);
  const GradientRun& run = landing.runs.front();
  std::byte* const to = staged.memory + run.first_element * element_bytes;
  if (!dry_) {
    std::memcpy(to, part.gradient, part.element_count * element_bytes);
    std::memset(to + part.element_count * element_bytes, 0,
                (run.element_count - part.element_count) * element_bytes);
  }
  sum_->send(staged);
}

// Nothing reads the slot any more: its last landing was handed on. Copies of it, and so what RankSum sends,
// are behind the operation that has made the part and this one.
void GradientStaging::fill(Slot& slot, const HandedPart& part) {
  const GradientRun& run = slot.staged.runs.front();
  const uint64_t element_bytes = bytes_of(space_.section_of(slot.staged.landing.chunk).type);
  const uint64_t first = run.first_element * element_bytes, bytes = part.element_count * element_bytes;
  device_.fill_in_order(slot.handed.id, first, part.gradient, bytes);
  device_.zero_in_order(slot.handed.id, first + bytes, run.element_count * element_bytes - bytes);
  slot.staged.source = &slot.handed;
}

// A tensor's micro-batches are added in their order, so older landings come first.
void GradientStaging::hand_on_oldest(Add add) {
  const StagedLanding& staged = slots_[oldest_].staged;
  oldest_ = (oldest_ + 1) % slots_.size();
  --taken_;
  sum_->add(staged, add);
}

void GradientStaging::make_room(Add add) {
  if (taken_ > 0 && taken_ == slots_.size()) hand_on_oldest(add);
}

void GradientStaging::finish(ChunkId chunk, Add add) {
  size_t count = 0;
  for (size_t age = 0; age < taken_; ++age) {
    if (slot_of(age).staged.landing.chunk == chunk) count = age + 1;
  }
  while (count-- > 0) hand_on_oldest(add);
}

void GradientStaging::finish_all(Add add) {
  while (taken_ > 0) hand_on_oldest(add);
}

void GradientStaging::poll(FunctionRef<bool(ChunkId)> can_add, Add add) {
  while (taken_ > 0) {
    const StagedLanding& oldest = slots_[oldest_].staged;
    if (!sum_->has_arrived(oldest) || !can_add(oldest.landing.chunk)) return;
    hand_on_oldest(add);
  }
}

}  // namespace terrace
