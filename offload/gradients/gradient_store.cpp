#include <terrace/offload/gradients/gradient_store.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/watched_votes.h>

namespace terrace {
namespace {

// The last word of each rank says how it ends the step.
void require_alike(StepEnd end, std::span<const uint8_t> all, size_t words) {
  for (size_t rank = 0; rank * words < all.size(); ++rank) {
    if (all[rank * words + words - 1] == static_cast<uint8_t>(end)) continue;
    throw Error(ErrorKind::peer,
                {end == StepEnd::update ? "cannot update with" : "cannot give up a step with",
                 fmt::format("rank {}", rank),
                 end == StepEnd::update ? "it has given up the step" : "it updates the step",
                 "let all ranks update, or all of them give up the step"});
  }
}

}  // namespace

GradientStore::GradientStore(const FlatSpace& space, Parts parts)
    : GradientStore(space, std::move(parts), nullptr, nullptr) {}

GradientStore::GradientStore(const FlatSpace& space, Parts parts, Adding adding)
    : GradientStore(space, std::move(parts), std::move(adding.watch), std::move(adding.workers)) {
  const auto finish = [this] {
    for (const std::unique_ptr<GradientPlace>& place : parts_.places) place->finish(true);
  };
  const auto place_of_chunk = [this](ChunkId chunk) -> GradientPlace& { return place_of(chunk); };
  pulled_ = std::make_unique<PulledGradients>(std::move(adding.parts),
                                              PulledGradients::Places{sums(), place_of_chunk, finish});
}

GradientStore::GradientStore(const FlatSpace& space, Parts parts, std::unique_ptr<StepWatch> watch,
                             std::unique_ptr<Workers> workers)
    : parts_(std::move(parts)),
      place_of_(space.chunk_count(), parts_.places.front().get()),
      adding_watch_(std::move(watch)),
      adding_workers_(std::move(workers)) {
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) {
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      if (place->has(ChunkId{c})) place_of_[c] = place.get();
    }
  }
}

void GradientStore::agree(StepEnd end, GradientRuns& runs, const RunContext& run) {
  if (pulled_ == nullptr) return;
  const bool skips = run.options.unused_gradients == UnusedGradients::skip;
  std::vector<uint8_t> have(skips ? run.space.tensor_count() : 0);
  for (uint32_t t = 0; t < have.size(); ++t) have[t] = runs.has_gradient(TensorId{t}) ? 1 : 0;
  have.push_back(static_cast<uint8_t>(end));
  const WatchedVotes ranks(RankVotes(run.options.hooks.communicator), run.watch);
  const std::vector<uint8_t> all =
      ranks.of_all("which tensors have a gradient", std::span<const uint8_t>(have));
  require_alike(end, all, have.size());
  have.pop_back();
  if (end == StepEnd::give_up || !skips) return;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t t = i % (have.size() + 1);
    if (t < have.size()) have[t] |= all[i];
  }
  runs.set_gradients(have);
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    if (!run.is_trained(ChunkId{c}) || runs.is_updated(ChunkId{c})) continue;
    sums().set_zero(ChunkId{c});
    sums().forget(ChunkId{c});
  }
}

void GradientStore::take_sums(ChunkId chunk, uint64_t first_element, uint64_t count,
                              const std::byte* gradient, InstructionSet set) {
  const std::span<double> sums = this->sums().of(chunk);
  const uint64_t block_bytes = kSumBlockElements * bytes_of(type(chunk));
  const uint64_t end = divide_up(first_element + count, kSumBlockElements);
  for (uint64_t b = first_element / kSumBlockElements; b < end; ++b)
    sums[b] = sum_of_squares_block(set, gradient + b * block_bytes, type(chunk), kSumBlockElements);
}

void GradientStore::land(const GradientLanding& landing) {
  if (pulled_ != nullptr) return pulled_->land(landing);
  GradientPlace& place = place_of(landing.chunk);
  sums().forget(landing.chunk);
  parts_.staging->make_room(adding());
  place.make_room(landing, finishing());
  parts_.staging->land(landing, place.place_of_whole(landing.chunk), adding());
}

void GradientStore::land_zero(const GradientLanding& landing) {
  if (pulled_ != nullptr) return;  // it is absent
  parts_.staging->finish(landing.chunk, adding());
  place_of(landing.chunk).add_zeros(landing, parts_.staging->own_part(landing), finishing());
}

void GradientStore::land_from(const GradientLanding& landing, const HandedPart& part,
                              const EvictionContext& now) {
  if (pulled_ != nullptr) return pulled_->land_part(landing, part);
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
  if (pulled_ != nullptr) return;
  parts_.staging->poll([this](ChunkId chunk) { return place_of(chunk).can_add(chunk); }, adding());
}

void GradientStore::finish_micro_batch(bool ends_step) {
  if (pulled_ != nullptr) return pulled_->end_micro_batch(ends_step);
  parts_.staging->finish_all(adding());
  for (const std::unique_ptr<GradientPlace>& place : parts_.places) place->finish(ends_step);
}

void GradientStore::give_up(bool ends_step) {
  if (pulled_ != nullptr) return pulled_->give_up();
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
