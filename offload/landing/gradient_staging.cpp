#include <terrace/offload/landing/gradient_staging.h>

#include <terrace/base/assert.h>

namespace terrace {

GradientStaging::GradientStaging(const FlatSpace& space, Device& device, DeviceCache& cache,
                                 std::span<std::byte* const> memory, size_t most_runs)
    : space_(space), device_(device), cache_(cache), slots_(memory.size()) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    slots_[s].memory = memory[s];
    slots_[s].runs.reserve(most_runs);
  }
}

size_t GradientStaging::take(const GradientLanding& landing) {
  const size_t index = next_;
  next_ = slot_of(1);
  Slot& slot = slots_[index];
  TERRACE_ASSERT(!slot.is_taken, "a landing is handed on before its slot is taken again");
  slot.is_taken = true;
  slot.runs.assign(landing.runs.begin(), landing.runs.end());
  slot.landing = landing;
  slot.landing.runs = slot.runs;
  return index;
}

void GradientStaging::land(const GradientLanding& landing) {
  const size_t index = take(landing);
  Slot& slot = slots_[index];
  const ChunkId chunk = landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  CacheSlot& source = cache_.release_gradient(chunk);
  DeviceCopy& copied = begin_leaving(index, source);
  for (const GradientRun& run : slot.runs) {
    const uint64_t offset = run.first_element * element_bytes, bytes = run.element_count * element_bytes;
    d2h_bytes_ += bytes;
    device_.copy_to_host(
        slot.memory + offset, source.id, offset, bytes, nullptr, copied,
        from_device_note(cache_.watch().events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  }
  left_device(index);
}

void GradientStaging::hand_on(size_t index, Add add) {
  if (!slots_[index].is_taken) return;
  slots_[index].is_taken = false;
  add_landing(index, add);
}

// A tensor's micro-batches are added in their order, so older landings come first.
void GradientStaging::finish(ChunkId chunk, Add add) {
  size_t count = 0;
  for (size_t age = 0; age < slots_.size(); ++age) {
    const Slot& slot = slots_[slot_of(age)];
    if (slot.is_taken && slot.landing.chunk == chunk) count = age + 1;
  }
  for (size_t age = 0; age < count; ++age) hand_on(slot_of(age), add);
}

void GradientStaging::finish_all(Add add) {
  for (size_t age = 0; age < slots_.size(); ++age) hand_on(slot_of(age), add);
}

void GradientStaging::poll(FunctionRef<bool(ChunkId)> can_add, Add add) {
  for (size_t age = 0; age < slots_.size(); ++age) {
    const size_t slot = slot_of(age);
    if (!slots_[slot].is_taken) continue;
    if (!has_arrived(slot) || !can_add(slots_[slot].landing.chunk)) break;
    hand_on(slot, add);
  }
}

// The device slot may be taken again before the copies are over: a wait then covers the copies after them.
DeviceCopy& StagedGradients::begin_leaving(size_t slot, CacheSlot& source) {
  sources_[slot] = &source;
  source.out.begin(to_host_copy("gradients", slots_[slot].landing.chunk),
                   static_cast<uint32_t>(slots_[slot].runs.size()));
  return source.out;
}

void StagedGradients::add_landing(size_t slot, Add add) {
  sources_[slot]->out.wait(cache_.watch());
  add(slots_[slot].landing, slots_[slot].memory, true);
}

}  // namespace terrace
