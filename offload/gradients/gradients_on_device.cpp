#include <terrace/offload/gradients/gradients_on_device.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

GradientsOnDevice::GradientsOnDevice(const FlatSpace& space, DeviceCache& cache,
                                     std::unique_ptr<GradientArithmetic> arithmetic,
                                     std::vector<std::byte*> landing_slots)
    : GradientStore(std::move(arithmetic), std::move(landing_slots)), space_(space), cache_(cache) {}

void GradientsOnDevice::land(const GradientLanding& landing) {
  sums().forget(landing.chunk);
  open(landing.chunk);
  arithmetic_->take(landing.chunk, type(landing.chunk), gradient(landing.chunk));
  close(landing.chunk);
}

void GradientsOnDevice::land_from(const GradientLanding& landing, const HandedPart& part,
                                  const EvictionContext& now) {
  h2d_bytes_ += cache_.fill_gradient(landing.chunk, landing.runs.front().first_element, part.gradient,
                                     part.element_count, now);
  if (landing.ends) land(landing);
}

void GradientsOnDevice::land_zero(const GradientLanding& landing) {
  // Other parts of the chunk's gradient were handed over before, and what lies beside them is zero.
  if (!landing.begins) return land(landing);
  sums().set_zero(landing.chunk);
  const Schedule unknown;
  CacheSlot* const slot = cache_.take_slot(EvictionContext{unknown, kNever});
  TERRACE_ASSERT(slot != nullptr, "the plan has a slot for every gradient that stays on the device");
  cache_.begin_gradient(landing.chunk, *slot);
  sums().note_complete(landing.chunk);
}

void GradientsOnDevice::finish_micro_batch(bool ends_step) {
  if (ends_step) arithmetic_->finish_step(*this);
}

void GradientsOnDevice::release(ChunkId chunk) {
  sums().forget(chunk);
  cache_.drop_gradient(chunk);
}

}  // namespace terrace
