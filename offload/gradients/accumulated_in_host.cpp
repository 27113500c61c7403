#include <terrace/offload/gradients/accumulated_in_host.h>

#include <algorithm>
#include <utility>

namespace terrace {

AccumulatedInHost::AccumulatedInHost(const ChunkShards& shards, Device& device, DeviceCache& cache,
                                     std::unique_ptr<GradientArithmetic> arithmetic, Places places,
                                     const AccumulationRules& rules, std::unique_ptr<GradientStaging> staging)
    : GradientsBelowDevice(shards.space(), device, cache, std::move(arithmetic), std::move(places)),
      shards_(shards),
      rules_(rules),
      staging_(std::move(staging)) {}

void AccumulatedInHost::land(const GradientLanding& landing) {
  sums().forget(landing.chunk);
  staging_->make_room(accumulating());
  make_place(landing);
  staging_->land(landing);
}

void AccumulatedInHost::land_from(const GradientLanding& landing, const HandedPart& part,
                                  const EvictionContext& now) {
  sums().forget(landing.chunk);
  staging_->make_room(accumulating());
  if (!staging_->land_from(landing, part)) return GradientsBelowDevice::land_from(landing, part, now);
  make_place(landing);
}

void AccumulatedInHost::accumulate(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  add(own, gradient, is_last);
  if (leaves_after(own)) put_away(own.chunk);
}

void AccumulatedInHost::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  if (!own.runs.empty()) {
    arithmetic_->add(own, place(own.chunk), gradient, is_last && takes_sums(own));
  } else if (own.ends) {
    sums().note_complete(own.chunk);
  }
}

void AccumulatedInHost::finish_landing(ChunkId chunk) {
  staging_->finish(chunk, accumulating());
}

void AccumulatedInHost::land_zero(const GradientLanding& landing) {
  finish_landing(landing.chunk);
  const GradientLanding own = staging_->own_part(landing);
  if (!is_held(landing.chunk)) return land_zero_spilled(landing, own);
  if (own.runs.empty() || rules_.changes_with_zeros(own)) add(own, nullptr, true);
}

// Another landing may be finished to make place for this one, which has the own part of that then.
void AccumulatedInHost::land_zero_spilled(const GradientLanding& landing, const GradientLanding& own) {
  const ChunkId chunk = own.chunk;
  if (own.begins && !own.runs.empty() && own.runs.front().element_count == shards_.elements(chunk)) {
    sums().set_zero(chunk);
    return spilled_->set_zero(chunk);
  }
  const bool joins = rules_.is_last(own) &&
                     std::ranges::any_of(own.runs, [](const GradientRun& run) { return run.open_group > 0; });
  if (joins || std::ranges::any_of(own.runs, &GradientRun::is_first)) {
    make_place(landing);
    add(staging_->own_part(landing), nullptr, true);
  }
  if (landing.ends && spilled_->is_filling(chunk)) spilled_->write(chunk);
}

void AccumulatedInHost::poll() {
  staging_->poll([this](ChunkId chunk) { return has_old(chunk); }, accumulating());
}

void AccumulatedInHost::finish_micro_batch(bool ends_step) {
  staging_->finish_all(accumulating());
  put_all_away(ends_step);
}

}  // namespace terrace
