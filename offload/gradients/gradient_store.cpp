#include <terrace/offload/gradients/gradient_store.h>

#include <utility>

namespace terrace {

GradientStore::GradientStore(const FlatSpace& space, Parts parts)
    : parts_(std::move(parts)), place_of_(space.chunk_count(), parts_.places.front().get()) {
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) {
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      if (place->has(ChunkId{c})) place_of_[c] = place.get();
    }
  }
}

void GradientStore::land(const GradientLanding& landing) {
  GradientPlace& place = place_of(landing.chunk);
  sums().forget(landing.chunk);
  parts_.staging->make_room(adding());
  place.make_room(landing, finishing());
  parts_.staging->land(landing, place.place_of_whole(landing.chunk), adding());
}

void GradientStore::land_zero(const GradientLanding& landing) {
  parts_.staging->finish(landing.chunk, adding());
  place_of(landing.chunk).add_zeros(landing, parts_.staging->own_part(landing), finishing());
}

void GradientStore::land_from(const GradientLanding& landing, const HandedPart& part,
                              const EvictionContext& now) {
  GradientPlace& place = place_of(landing.chunk);
  if (!parts_.staging->has_other_ranks()) {
    if (place.take(landing, part, now, finishing())) land(landing);
    return;
  }
  sums().forget(landing.chunk);
  parts_.staging->make_room(adding());
  place.make_room(landing, finishing());
  parts_.staging->land_part(landing, part);
}

void GradientStore::poll() {
  parts_.staging->poll([this](ChunkId chunk) { return place_of(chunk).can_add(chunk); }, adding());
}

void GradientStore::finish_micro_batch(bool ends_step) {
  parts_.staging->finish_all(adding());
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) place->finish(ends_step);
}

void GradientStore::give_up(bool ends_step) {
  parts_.staging->finish_all(adding());
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) place->give_up(ends_step);
}

void GradientStore::end_displacement() {
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) place->end_displacement();
}

std::optional<WaitSubject> GradientStore::opening_subject() const {
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) {
    if (const std::optional<WaitSubject> subject = place->opening_subject()) return subject;
  }
  return std::nullopt;
}

uint64_t GradientStore::total(uint64_t (GradientPlace::*bytes)() const) const {
  uint64_t sum = 0;
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) sum += (place.get()->*bytes)();
  return sum;
}

}  // namespace terrace
