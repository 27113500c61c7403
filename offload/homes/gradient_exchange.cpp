#include <terrace/offload/homes/gradient_exchange.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr const char* kExchanged = "gradients";

}  // namespace

GradientExchange::GradientExchange(const Ranks& ranks, Device& device, DeviceCache& cache,
                                   std::span<std::byte* const> memory, std::span<std::byte* const> incoming,
                                   size_t most_runs)
    : GradientStaging(ranks.shards.space(), device, cache, memory, most_runs),
      shards_(ranks.shards),
      ranks_(ranks.communicator),
      rounds_(ranks.rounds),
      dry_(ranks.dry),
      parts_(memory.size()) {
  TERRACE_ASSERT(memory.size() == incoming.size(), "what leaves and what comes have as many slots");
  for (size_t s = 0; s < parts_.size(); ++s) {
    parts_[s].incoming = incoming[s];
    parts_[s].to.resize(ranks_.size());
    parts_[s].from.resize(ranks_.size());
  }
  own_runs_.reserve(most_runs);
}

GradientExchange::~GradientExchange() {
  for (const Parts& parts : parts_) {
    parts.copied.wait_done();
    parts.arrived.wait_done();
  }
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
  Parts& parts = parts_[index];
  parts.source = &source;
  parts.copied.begin(to_host_copy(kExchanged, slots_[index].landing.chunk),
                     static_cast<uint32_t>(slots_[index].runs.size()));
  return parts.copied;
}

void GradientExchange::left_device(size_t index) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  if (CacheSlot* const source = std::exchange(parts.source, nullptr)) {
    // An empty copy behind the others says that the device slot is free.
    source->out.begin(to_host_copy(kExchanged, chunk));
    device_.copy_to_host(slot.memory, source->id, 0, 0, nullptr, source->out);
  }
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  const bool has_data = rounds_.has(slot.landing.micro_batch, ranks_.rank());
  const ShardTiles own = shards_.own(chunk);
  const Span mine = part_in(slot.runs, own);
  const uint64_t before_mine = mine.begin == mine.end ? 0 : mine.begin - own.first_element();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Span part = part_in(slot.runs, shards_.of(chunk, rank));
    parts.to[rank] = {slot.memory + part.begin * element_bytes, (part.end - part.begin) * element_bytes,
                      !has_data};
    parts.from[rank] = {parts.incoming + (rank * own.elements() + before_mine) * element_bytes,
                        (mine.end - mine.begin) * element_bytes};
    if (rank == ranks_.rank()) continue;
    if (has_data) out_bytes_ += parts.to[rank].bytes;
    if (rounds_.has(slot.landing.micro_batch, rank)) in_bytes_ += parts.from[rank].bytes;
  }
  parts.arrived.begin({kExchanged, index_of(chunk), CopyName::Link::ranks});
  ranks_.exchange(Lane::exchange, parts.to, parts.from, &parts.copied, parts.arrived,
                  {kExchanged, index_of(chunk), ++sent_});
}

GradientLanding GradientExchange::own_part(const GradientLanding& landing) {
  const ShardTiles own = shards_.own(landing.chunk);
  const uint64_t first = own.first_element(), last = first + own.elements();
  own_runs_.clear();
  for (const GradientRun& run : landing.runs) {
    const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
    if (begin < end) own_runs_.push_back({begin - first, end - begin, run.is_first});
  }
  GradientLanding part = landing;
  part.runs = own_runs_;
  part.micro_batch = std::min(rounds_.number(landing.micro_batch + 1, 0), rounds_.micro_batches) - 1;
  return part;
}

void GradientExchange::add_landing(size_t index, Add add) {
  const Slot& slot = slots_[index];
  const Parts& parts = parts_[index];
  parts.arrived.wait(cache_.watch());
  const ChunkId chunk = slot.landing.chunk;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  const ShardTiles own = shards_.own(chunk);
  const uint32_t round = slot.landing.micro_batch;
  GradientLanding part = own_part(slot.landing);
  for (uint32_t rank = 0; rank < ranks_.size() && rounds_.has(round, rank); ++rank) {
    const bool is_last = rank + 1 == ranks_.size() || !rounds_.has(round, rank + 1);
    part.micro_batch = rounds_.number(round, rank);
    part.ends = slot.landing.ends && is_last;
    part.completes = slot.landing.completes && is_last;
    add(part,
        rank == ranks_.rank() ? slot.memory + own.first_element() * element_bytes
                              : parts.incoming + rank * own.elements() * element_bytes,
        is_last);
    for (GradientRun& run : own_runs_) run.is_first = false;
  }
}

}  // namespace terrace
