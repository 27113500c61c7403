#include <terrace/offload/landing/gradient_exchange.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

GradientExchange::GradientExchange(const Ranks& ranks, Device& device, DeviceCache& cache,
                                   std::span<std::byte* const> memory, size_t most_runs)
    : GradientStaging(ranks.shards.space(), device, cache, memory, most_runs),
      shards_(ranks.shards),
      ranks_(ranks.communicator),
      rounds_(ranks.rounds),
      hosts_(ranks.rounds.layout()),
      overlaps_(ranks.overlaps),
      dry_(ranks.dry),
      sources_(memory.size()) {
  own_runs_.reserve(most_runs);
}

GradientExchange::~GradientExchange() {
  for (const Source& source : sources_) source.copied.wait_done();
}

GradientExchange::Span GradientExchange::part_in(std::span<const GradientRun> runs, const ShardTiles& tiles) {
  const uint64_t first = tiles.first_element(), last = first + tiles.elements();
  Span part;
  for (const GradientRun& run : runs) {
    const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
    if (begin >= end) continue;
    if (part.begin == part.end) part.begin = begin;
    part.end = end;
  }
  return part;
}

// What lies between two runs is sent where one rank owns the ends of both.
uint64_t GradientExchange::elements_of_all(ChunkId chunk, std::span<const GradientRun> runs) const {
  const uint64_t shard = shards_.transfer_tiles(chunk) * kTileElements;
  uint64_t elements = 0, end = 0;
  for (const GradientRun& run : runs) {
    const bool has_hole = elements > 0 && (end - 1) / shard == run.first_element / shard;
    elements += run.element_count + (has_hole ? run.first_element - end : 0);
    end = run.end();
  }
  return elements;
}

uint64_t GradientExchange::elements_of(const RankGroup& group, ChunkId chunk,
                                       std::span<const GradientRun> runs) const {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < group.count; ++i)
    elements += part_in(runs, shards_.of(chunk, group.rank(i))).elements();
  return elements;
}

CommNote GradientExchange::next_note(ChunkId chunk, uint64_t& asked) {
  return {kExchanged, index_of(chunk), ++asked, exchanged_note(cache_.watch().events(), index_of(chunk))};
}

// The program may change the part's memory after the call. The padding behind it has no gradient.
bool GradientExchange::land_from(const GradientLanding& landing, const HandedPart& part) {
  const size_t index = take(landing);
  const uint64_t element_bytes = bytes_of(space_.section_of(landing.chunk).type);
  const GradientRun& run = landing.runs.front();
  std::byte* const to = slots_[index].memory + run.first_element * element_bytes;
  if (!dry_) {
    std::memcpy(to, part.gradient, part.element_count * element_bytes);
    std::memset(to + part.element_count * element_bytes, 0,
                (run.element_count - part.element_count) * element_bytes);
  }
  left_device(index);
  return true;
}

// The device slot may be taken for another landing before the exchange has looked at the copies, so they have
// an event of their own.
DeviceCopy& GradientExchange::begin_leaving(size_t index, CacheSlot& source) {
  sources_[index].slot = &source;
  sources_[index].copied.begin(to_host_copy(kExchanged, slots_[index].landing.chunk),
                               static_cast<uint32_t>(slots_[index].runs.size()));
  return sources_[index].copied;
}

void GradientExchange::left_device(size_t index) {
  if (CacheSlot* const source = std::exchange(sources_[index].slot, nullptr)) {
    // An empty copy behind the others says that the device slot is free.
    source->out.begin(to_host_copy(kExchanged, slots_[index].landing.chunk));
    device_.copy_to_host(slots_[index].memory, source->id, 0, 0, nullptr, source->out);
  }
  send(index, sources_[index].copied);
}

GradientLanding GradientExchange::own_part(const GradientLanding& landing) {
  const ShardTiles own = shards_.own(landing.chunk);
  const uint64_t first = own.first_element(), last = first + own.elements();
  own_runs_.clear();
  for (const GradientRun& run : landing.runs) {
    const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
    if (begin < end) own_runs_.push_back({begin - first, end - begin, run.is_first, run.open_group});
  }
  GradientLanding part = landing;
  part.runs = own_runs_;
  part.micro_batch = rounds_.last_of(landing.micro_batch);
  return part;
}

void GradientExchange::add_one(Added what, const Slot& slot, uint32_t micro_batch, const std::byte* gradient,
                               bool is_last, Add add) {
  GradientLanding part = slot.landing;
  part.runs = own_runs_;
  part.micro_batch = micro_batch;
  part.ends = slot.landing.ends && is_last;
  part.completes = slot.landing.completes && is_last;
  part.is_group_sum = what == Added::group_sum;
  add(part, gradient, is_last);
  for (GradientRun& run : own_runs_) {
    run.is_first = false;
    if (rounds_.has_groups()) run.open_group = part.is_group_sum ? 0 : micro_batch / rounds_.group + 1;
  }
}

ExchangeWithAll::ExchangeWithAll(const Ranks& ranks, Device& device, DeviceCache& cache,
                                 std::span<std::byte* const> memory, std::span<std::byte* const> incoming,
                                 size_t most_runs)
    : GradientExchange(ranks, device, cache, memory, most_runs), parts_(memory.size()) {
  TERRACE_ASSERT(memory.size() == incoming.size(), "what leaves and what comes have as many slots");
  for (size_t s = 0; s < parts_.size(); ++s) {
    parts_[s].incoming = incoming[s];
    if (dry_) continue;
    parts_[s].to.resize(ranks_.size());
    parts_[s].from.resize(ranks_.size());
  }
}

ExchangeWithAll::~ExchangeWithAll() {
  for (const Parts& parts : parts_) parts.arrived.wait_done();
}

void ExchangeWithAll::send(size_t index, const Event& copied) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const RankBytes before = moved_;
  count_bytes(slot);
  parts.arrived.begin({kExchanged, index_of(slot.landing.chunk), CopyName::Link::exchange});
  const CommNote note = next_note(slot.landing.chunk, sent_);
  if (dry_) {
    const CommPart out{slot.memory, moved_.out - before.out};
    CommPart in{parts.incoming, moved_.in - before.in};
    return ranks_.exchange(Lane::exchange, {&out, 1}, {&in, 1}, &copied, parts.arrived, note);
  }
  fill_parts(index);
  ranks_.exchange(Lane::exchange, parts.to, parts.from, &copied, parts.arrived, note);
  if (!overlaps_) parts.arrived.wait_done(cache_.watch());  // a failure is that of the addition
}

void ExchangeWithAll::count_bytes(const Slot& slot) {
  const ChunkId chunk = slot.landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  const uint32_t round = slot.landing.micro_batch, mine = ranks_.rank();
  const uint64_t own = part_in(slot.runs, shards_.own(chunk)).elements() * element_bytes;
  const uint32_t neighbours = rounds_.ranks_with_data(round, hosts_.host_of(mine));
  const uint64_t others = rounds_.ranks_with_data(round) - neighbours;
  moved_.in += (others + neighbours - (rounds_.has(round, mine) ? 1 : 0)) * own;
  moved_.between_in += others * own;
  if (!rounds_.has(round, mine)) return;
  const uint64_t all = elements_of_all(chunk, slot.runs) * element_bytes;
  moved_.out += all - own;
  if (hosts_.hosts > 1)
    moved_.between_out += all - elements_of(hosts_.on_host_of(mine), chunk, slot.runs) * element_bytes;
}

void ExchangeWithAll::fill_parts(size_t index) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  const bool has_data = rounds_.has(slot.landing.micro_batch, ranks_.rank());
  const ShardTiles own = shards_.own(chunk);
  const Span mine = part_in(slot.runs, own);
  const uint64_t before_mine = mine.offset_in(own);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Span part = part_in(slot.runs, shards_.of(chunk, rank));
    parts.to[rank] = {slot.memory + part.begin * element_bytes, part.elements() * element_bytes, !has_data};
    parts.from[rank] = {parts.incoming + (rank * own.elements() + before_mine) * element_bytes,
                        mine.elements() * element_bytes};
  }
}

void ExchangeWithAll::add_landing(size_t index, Add add) {
  const Slot& slot = slots_[index];
  const Parts& parts = parts_[index];
  parts.arrived.wait(cache_.watch());
  const ChunkId chunk = slot.landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  const ShardTiles own = shards_.own(chunk);
  const uint32_t round = slot.landing.micro_batch;
  own_part(slot.landing);
  for (uint32_t rank = 0; rank < ranks_.size() && rounds_.has(round, rank); ++rank) {
    const bool is_last = rank + 1 == ranks_.size() || !rounds_.has(round, rank + 1);
    add_one(Added::gradient, slot, rounds_.number(round, rank),
            rank == ranks_.rank() ? slot.memory + own.first_element() * element_bytes
                                  : parts.incoming + rank * own.elements() * element_bytes,
            is_last, add);
  }
}

}  // namespace terrace
