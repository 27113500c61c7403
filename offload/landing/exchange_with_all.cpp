#include <terrace/offload/landing/exchange_with_all.h>

namespace terrace {

ExchangeWithAll::ExchangeWithAll(const ExchangeRanks& ranks, std::span<std::byte* const> incoming,
                                 size_t most_runs)
    : ranks_(ranks), own_(ranks, most_runs), parts_(incoming.size()) {
  for (size_t s = 0; s < parts_.size(); ++s) {
    parts_[s].incoming = incoming[s];
    if (ranks_.dry) continue;
    parts_[s].to.resize(ranks_.size());
    parts_[s].from.resize(ranks_.size());
  }
}

ExchangeWithAll::~ExchangeWithAll() {
  for (const Parts& parts : parts_) parts.arrived.wait_done();
}

void ExchangeWithAll::send(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const RankBytes moving = ranks_.bytes_with_all(staged);
  moved_ += moving;
  parts.arrived.begin({kExchangedGradients, index_of(staged.landing.chunk), CopyName::Link::exchange});
  const CommNote note = ranks_.next_note(staged.landing.chunk, sent_);
  if (ranks_.dry) {
    const CommPart out{staged.memory, moving.out};
    CommPart in{parts.incoming, moving.in};
    return ranks_.communicator.exchange(Lane::exchange, {&out, 1}, {&in, 1}, staged.copied, parts.arrived,
                                        note);
  }
  fill_parts(staged);
  ranks_.communicator.exchange(Lane::exchange, parts.to, parts.from, staged.copied, parts.arrived, note);
  if (!ranks_.overlaps) parts.arrived.wait_done(ranks_.watch);  // a failure is that of the addition
}

void ExchangeWithAll::fill_parts(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const ChunkId chunk = staged.landing.chunk;
  const uint64_t element_bytes = ranks_.element_bytes(chunk);
  const bool has_data = ranks_.rounds.has(staged.landing.micro_batch, ranks_.rank());
  const ShardTiles own = ranks_.shards.own(chunk);
  const PartSpan mine = part_in(staged.runs, own);
  const uint64_t before_mine = mine.offset_in(own);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const PartSpan part = part_in(staged.runs, ranks_.shards.of(chunk, rank));
    parts.to[rank] = {staged.memory + part.begin * element_bytes, part.elements() * element_bytes, !has_data};
    parts.from[rank] = {parts.incoming + (rank * own.elements() + before_mine) * element_bytes,
                        mine.elements() * element_bytes};
  }
}

void ExchangeWithAll::add(const StagedLanding& staged, Add add) {
  const Parts& parts = parts_[staged.slot];
  parts.arrived.wait(ranks_.watch);
  const ChunkId chunk = staged.landing.chunk;
  const uint64_t element_bytes = ranks_.element_bytes(chunk);
  const ShardTiles own = ranks_.shards.own(chunk);
  own_.add_all(
      staged,
      [&](uint32_t rank) -> const std::byte* {
        return rank == ranks_.rank() ? staged.memory + own.first_element() * element_bytes
                                     : parts.incoming + rank * own.elements() * element_bytes;
      },
      add);
}

}  // namespace terrace
