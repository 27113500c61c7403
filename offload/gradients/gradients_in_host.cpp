#include <terrace/offload/gradients/gradients_in_host.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

GradientsInHost::GradientsInHost(const FlatSpace& space, DeviceCache& cache, GradientArithmetic& arithmetic,
                                 const AccumulationRules& rules, std::vector<std::byte*> slots,
                                 bool take_over)
    : space_(space),
      cache_(cache),
      arithmetic_(arithmetic),
      rules_(rules),
      slots_(std::move(slots)),
      take_over_(take_over),
      displaced_(space.chunk_count(), false) {}

std::byte* GradientsInHost::gradient(ChunkId chunk) {
  TERRACE_ASSERT(space_.section_of(chunk).trainable,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return slots_[index_of(chunk)];
}

// A fetch that no operation has used yet may still copy from the slot, so it is waited for.
void GradientsInHost::make_room(const GradientLanding& landing, Finish) {
  if (!take_over_) return;
  if (const DeviceCopy* arriving = cache_.arriving(landing.chunk)) arriving->wait_done(cache_.watch());
  displaced_[index_of(landing.chunk)] = true;
}

void GradientsInHost::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  std::byte* const to = this->gradient(own.chunk);
  if (own.runs.empty()) {
    if (own.ends) arithmetic_.sums().note_complete(own.chunk);
  } else if (gradient == to) {
    arithmetic_.take(own.chunk, type(own.chunk), to);
  } else {
    arithmetic_.add(own, to, gradient, is_last && rules_.is_last(own));
  }
}

void GradientsInHost::add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) {
  make_room(landing, finish);
  if (own.runs.empty() || rules_.changes_with_zeros(own)) add(own, nullptr, true);
}

bool GradientsInHost::take(const GradientLanding& landing, const HandedPart& part, const EvictionContext&,
                           Finish) {
  arithmetic_.sums().forget(landing.chunk);
  add_handed_part(*this, landing, part, bytes_of(space_.section_of(landing.chunk).type));
  return false;
}

}  // namespace terrace
