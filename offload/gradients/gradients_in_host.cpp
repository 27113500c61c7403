#include <terrace/offload/gradients/gradients_in_host.h>

#include <cstring>
#include <utility>

namespace terrace {

GradientsInHost::GradientsInHost(const FlatSpace& space, Device& device, DeviceCache& cache,
                                 std::unique_ptr<GradientArithmetic> arithmetic, Places places,
                                 bool take_over)
    : GradientsBelowDevice(space, device, cache, std::move(arithmetic), std::move(places)),
      take_over_(take_over),
      displaced_(space.chunk_count(), false) {
  leaving_.reserve(space.chunk_count());
}

void GradientsInHost::land(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  sums().forget(chunk);
  make_place(landing);
  displace(chunk);
  const GradientRun whole{.element_count = space_.chunk(chunk).elements};
  leaving_.push_back({&copy_out(chunk, {&whole, 1}, place(chunk)), chunk});
}

void GradientsInHost::land_zero(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  if (!landing.begins) return land_zero_beside(landing);
  sums().set_zero(chunk);
  if (!is_held(chunk)) return spilled_->set_zero(chunk);
  displace(chunk);
  if (!sums().dry()) std::memset(place(chunk), 0, space_.param_bytes(chunk));
  sums().note_complete(chunk);
}

// Other parts of the chunk's gradient were handed over before.
void GradientsInHost::land_zero_beside(const GradientLanding& landing) {
  make_place(landing);
  arithmetic_->add(landing, place(landing.chunk), nullptr, true);
  put_away(landing.chunk);
}

// A fetch that no operation has used yet may still copy from the slot, so it is waited for.
void GradientsInHost::displace(ChunkId chunk) {
  if (!take_over_ || !is_held(chunk)) return;
  if (const DeviceCopy* arriving = cache_.arriving(chunk)) arriving->wait_done(cache_.watch());
  displaced_[index_of(chunk)] = true;
}

void GradientsInHost::poll() {
  while (finished_ < leaving_.size() && leaving_[finished_].source->out.done()) finish_next();
}

void GradientsInHost::finish_landing(ChunkId chunk) {
  while (spilled_->is_filling(chunk) && finished_ < leaving_.size()) finish_next();
}

void GradientsInHost::finish_next() {
  const auto [source, chunk] = leaving_[finished_];
  source->out.wait(cache_.watch());
  arithmetic_->take(chunk, type(chunk), place(chunk));
  put_away(chunk);
  ++finished_;
}

void GradientsInHost::finish_micro_batch(bool ends_step) {
  while (finished_ < leaving_.size()) finish_next();
  leaving_.clear();
  finished_ = 0;
  put_all_away(ends_step);
}

}  // namespace terrace
