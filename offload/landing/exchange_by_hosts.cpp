#include <terrace/offload/landing/exchange_by_hosts.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {
namespace {

constexpr uint64_t kTaskElements = 16 * kSumBlockElements;

}  // namespace

ExchangeByHosts::ExchangeByHosts(const Ranks& ranks, const Summing& summing, Device& device,
                                 DeviceCache& cache, std::span<std::byte* const> memory,
                                 std::span<std::byte* const> incoming, size_t most_runs)
    : GradientExchange(ranks, device, cache, memory, most_runs), summing_(summing), parts_(memory.size()) {
  TERRACE_ASSERT(memory.size() == incoming.size(), "what leaves and what comes have as many slots");
  const uint32_t groups = rounds_.groups_per_host();
  for (size_t s = 0; s < parts_.size(); ++s) {
    Parts& parts = parts_[s];
    parts.incoming = incoming[s];
    const uint64_t sums = (hosts_.hosts - 1) * groups;
    parts.sums = parts.incoming + hosts_.ranks * summing_.part_bytes;
    parts.crossing_in = parts.sums + sums * summing_.sum_bytes;
    parts.crossing_out = has_codes() ? parts.crossing_in + sums * summing_.code_bytes : parts.sums;
    if (dry_) continue;
    parts.to.assign(hosts_.hosts + groups, std::vector<CommPart>(ranks_.size()));
    parts.from = parts.to;
  }
}

ExchangeByHosts::~ExchangeByHosts() {
  for (const Parts& parts : parts_) {
    parts.inside.wait_done();
    parts.between.wait_done();
  }
}

const std::byte* ExchangeByHosts::part_of(size_t index, uint32_t rank, uint32_t host) const {
  const Slot& slot = slots_[index];
  const ChunkId chunk = slot.landing.chunk;
  if (rank == ranks_.rank()) return slot.memory + owners(chunk, host).first_element() * element_bytes(chunk);
  return parts_[index].incoming +
         (host * hosts_.ranks_per_host() + hosts_.place_on_host(rank)) * summing_.part_bytes;
}

std::byte* ExchangeByHosts::sum_at(std::byte* sums, uint64_t bytes, uint32_t host, uint32_t group) const {
  const uint32_t place = host < own_host() ? host : host - 1;
  return sums + (place * rounds_.groups_per_host() + group) * bytes;
}

void ExchangeByHosts::send(size_t index, const Event& copied) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  const uint32_t round = slot.landing.micro_batch, mine = ranks_.rank();
  const RankGroup summing = hosts_.across_hosts_of(mine);  // this rank sums for them
  const uint64_t for_me = elements_of(summing, chunk, slot.runs) * element_bytes(chunk);
  const uint32_t senders = rounds_.ranks_with_data(round, own_host());
  const bool has_data = rounds_.has(round, mine);
  moved_.in += (senders - (has_data ? 1 : 0)) * for_me;
  if (has_data) moved_.out += elements_of_all(chunk, slot.runs) * element_bytes(chunk) - for_me;
  parts.is_summed = false;
  parts.inside.begin({kExchanged, index_of(chunk), CopyName::Link::exchange}, hosts_.hosts);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) send_inside(index, host, copied);
  if (overlaps_) return;
  sum_up_to(index);
  parts.between.wait_done(cache_.watch());  // a failure is that of the addition
}

void ExchangeByHosts::send_inside(size_t index, uint32_t host, const Event& copied) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  const uint64_t bytes = element_bytes(chunk);
  const uint32_t round = slot.landing.micro_batch;
  const bool has_data = rounds_.has(round, ranks_.rank());
  const RankGroup neighbours = hosts_.on_host_of(ranks_.rank());
  const ShardTiles tiles = owners(chunk, host);
  const Span mine = part_in(slot.runs, tiles);
  const CommNote note = next_note(chunk, sent_inside_);
  if (dry_) {
    const uint64_t there =
        has_data ? elements_of(hosts_.on_host_of(hosts_.rank(host, 0)), chunk, slot.runs) : 0;
    const uint32_t senders = rounds_.ranks_with_data(round, own_host()) - (has_data ? 1 : 0);
    const CommPart out{slot.memory, has_data ? (there - mine.elements()) * bytes : 0};
    CommPart in{parts.incoming, senders * mine.elements() * bytes};
    return ranks_.exchange_within(neighbours, Lane::exchange, {&out, 1}, {&in, 1}, &copied, parts.inside,
                                  note);
  }
  const uint64_t before_mine = mine.offset_in(tiles) * bytes;
  for (uint32_t i = 0; i < neighbours.count; ++i) {
    const uint32_t rank = neighbours.rank(i);
    const Span part = part_in(slot.runs, shards_.of(chunk, hosts_.rank(host, i)));
    std::byte* const from = parts.incoming + (host * neighbours.count + i) * summing_.part_bytes;
    parts.to[host][rank] = {slot.memory + part.begin * bytes, part.elements() * bytes, !has_data};
    parts.from[host][rank] = {from + before_mine, mine.elements() * bytes};
  }
  ranks_.exchange_within(neighbours, Lane::exchange, parts.to[host], parts.from[host], &copied, parts.inside,
                         note);
}

// Every rank sends its sums, of whatever became of the parts, so that all ask for the same exchanges.
void ExchangeByHosts::send_between(size_t index) {
  const Slot& slot = slots_[index];
  Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  const uint32_t round = slot.landing.micro_batch;
  const RankGroup others = hosts_.across_hosts_of(ranks_.rank());
  const Span mine = part_in(slot.runs, shards_.own(chunk));
  const uint64_t before_mine = crossing(mine.offset_in(shards_.own(chunk)));
  count_between(slot);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) {
    if (host != own_host() && !parts.inside.failed()) sum_groups(index, host);
  }
  parts.is_summed = true;
  parts.between.begin({kExchanged, index_of(chunk), CopyName::Link::exchange}, rounds_.groups_per_host());
  for (uint32_t group = 0; group < rounds_.groups_per_host(); ++group) {
    const bool has_group = group < rounds_.groups_on(own_host(), round);
    const CommNote note = next_note(chunk, sent_between_);
    if (dry_) {
      uint64_t senders = 0;
      for (uint32_t host = 0; host < hosts_.hosts; ++host)
        senders += host != own_host() && group < rounds_.groups_on(host, round) ? 1 : 0;
      const uint64_t theirs = elements_of(others, chunk, slot.runs) - mine.elements();
      const CommPart out{parts.crossing_out, has_group ? crossing(theirs) : 0};
      CommPart in{parts.crossing_in, senders * crossing(mine.elements())};
      ranks_.exchange_within(others, Lane::exchange_between_hosts, {&out, 1}, {&in, 1}, &parts.inside,
                             parts.between, note);
      continue;
    }
    std::vector<CommPart>& to = parts.to[hosts_.hosts + group];
    std::vector<CommPart>& from = parts.from[hosts_.hosts + group];
    for (uint32_t host = 0; host < hosts_.hosts; ++host) {
      if (host == own_host()) continue;
      const ShardTiles tiles = owners(chunk, host);
      const Span part = part_in(slot.runs, tiles);
      to[others.rank(host)] = {
          sum_at(parts.crossing_out, crossing_sum_bytes(), host, group) + crossing(part.offset_in(tiles)),
          crossing(part.elements()), !has_group};
      from[others.rank(host)] = {sum_at(parts.crossing_in, crossing_sum_bytes(), host, group) + before_mine,
                                 crossing(mine.elements())};
    }
    ranks_.exchange_within(others, Lane::exchange_between_hosts, to, from, &parts.inside, parts.between,
                           note);
  }
}

void ExchangeByHosts::count_between(const Slot& slot) {
  const ChunkId chunk = slot.landing.chunk;
  const uint32_t round = slot.landing.micro_batch;
  const uint64_t own = part_in(slot.runs, shards_.own(chunk)).elements();
  const uint64_t theirs = elements_of(hosts_.across_hosts_of(ranks_.rank()), chunk, slot.runs) - own;
  uint64_t groups = 0;
  for (uint32_t host = 0; host < hosts_.hosts; ++host)
    groups += host != own_host() ? rounds_.groups_on(host, round) : 0;
  const uint64_t in = groups * crossing(own);
  const uint64_t out = rounds_.groups_on(own_host(), round) * crossing(theirs);
  moved_ += {in, out, in, out};
}

void ExchangeByHosts::sum_groups(size_t index, uint32_t host) {
  const Slot& slot = slots_[index];
  const Span whole = part_in(slot.runs, owners(slot.landing.chunk, host));
  const ComputingScope computing(cache_.watch());
  summing_.workers.parallel_for(dry_ ? 0 : divide_up(whole.elements(), kTaskElements), [&](size_t task) {
    const uint64_t begin = whole.begin + task * kTaskElements;
    sum_piece(index, host, begin, std::min(whole.end, begin + kTaskElements));
  });
}

// In the order of micro-batches, with the rounding that an accumulator has. What lies between runs crosses,
// too, and nobody looks at it.
void ExchangeByHosts::sum_piece(size_t index, uint32_t host, uint64_t begin, uint64_t end) {
  const Slot& slot = slots_[index];
  const Parts& parts = parts_[index];
  const ChunkId chunk = slot.landing.chunk;
  const DataType type = space_.section_of(chunk).type;
  const uint32_t round = slot.landing.micro_batch;
  const uint64_t sum_type_bytes = bytes_of(summing_.sum_type);
  const ShardTiles tiles = owners(chunk, host);
  const uint32_t first_rank = hosts_.rank(own_host(), 0), ranks = rounds_.ranks_with_data(round, own_host());
  for (const GradientRun& run : slot.runs) {
    const uint64_t first = std::max(begin, run.first_element), last = std::min(end, run.end());
    if (first >= last) continue;
    const uint64_t before = first - tiles.first_element();
    for (uint32_t i = 0; i < ranks; ++i) {
      std::byte* const sum = sum_at(parts.sums, summing_.sum_bytes, host, i / rounds_.group);
      accumulate(summing_.instruction_set,
                 {.accumulator = sum + before * sum_type_bytes,
                  .accumulator_type = summing_.sum_type,
                  .gradient = part_of(index, first_rank + i, host) + before * bytes_of(type),
                  .gradient_type = type,
                  .count = last - first,
                  .first = i % rounds_.group == 0});
    }
  }
  const uint64_t before = begin - tiles.first_element();
  for (uint32_t group = 0; has_codes() && group < rounds_.groups_on(own_host(), round); ++group)
    quantize(summing_.instruction_set, rounds_.gradient_bits,
             sum_at(parts.sums, summing_.sum_bytes, host, group) + before * sum_type_bytes, summing_.sum_type,
             end - begin, sum_at(parts.crossing_out, summing_.code_bytes, host, group) + crossing(before));
}

// The own host's sums have become codes, so those of others take their place.
const std::byte* ExchangeByHosts::arrived_sum(size_t index, uint32_t host, uint32_t group) {
  const Slot& slot = slots_[index];
  const Parts& parts = parts_[index];
  const std::byte* const arrived = sum_at(parts.crossing_in, crossing_sum_bytes(), host, group);
  if (!has_codes()) return arrived;
  std::byte* const sum = sum_at(parts.sums, summing_.sum_bytes, host, group);
  const ShardTiles own = shards_.own(slot.landing.chunk);
  const Span mine = part_in(slot.runs, own);
  const uint64_t before = mine.offset_in(own);
  const ComputingScope computing(cache_.watch());
  summing_.workers.parallel_for(dry_ ? 0 : divide_up(mine.elements(), kTaskElements), [&](size_t task) {
    const uint64_t first = before + task * kTaskElements,
                   end = std::min(before + mine.elements(), first + kTaskElements);
    dequantize(summing_.instruction_set, rounds_.gradient_bits, arrived + crossing(first),
               sum + first * bytes_of(summing_.sum_type), summing_.sum_type, end - first);
  });
  return sum;
}

void ExchangeByHosts::sum_what_is_there() {
  while (!parts_[next_to_sum_].is_summed && parts_[next_to_sum_].inside.done()) {
    send_between(next_to_sum_);
    next_to_sum_ = (next_to_sum_ + 1) % parts_.size();
  }
}

void ExchangeByHosts::sum_up_to(size_t index) {
  while (!parts_[index].is_summed) {
    parts_[next_to_sum_].inside.wait_done(cache_.watch());
    sum_what_is_there();
  }
}

bool ExchangeByHosts::has_arrived(size_t index) {
  sum_what_is_there();
  return parts_[index].is_summed && parts_[index].between.done();
}

// A group never stays open from round to round but where the own host has the last of the round.
GradientLanding ExchangeByHosts::own_part(const GradientLanding& landing) {
  const GradientLanding part = GradientExchange::own_part(landing);
  for (GradientRun& run : own_runs_) {
    if (own_host() + 1 < hosts_.hosts) run.open_group = 0;
  }
  return part;
}

void ExchangeByHosts::add_landing(size_t index, Add add) {
  const Slot& slot = slots_[index];
  sum_up_to(index);
  parts_[index].between.wait(cache_.watch());
  const uint32_t round = slot.landing.micro_batch, per_host = hosts_.ranks_per_host();
  const uint32_t last = rounds_.last_of(round);
  own_part(slot.landing);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) {
    const uint32_t first = rounds_.number(round, host * per_host),
                   ranks = rounds_.ranks_with_data(round, host);
    if (host == own_host()) {
      for (uint32_t i = 0; i < ranks; ++i)
        add_one(Added::gradient, slot, first + i, part_of(index, hosts_.rank(host, i), host),
                first + i == last, add);
      continue;
    }
    for (uint32_t group = 0; group < rounds_.groups_on(host, round); ++group) {
      const uint32_t micro_batch = std::min(first + (group + 1) * rounds_.group - 1, last);
      add_one(Added::group_sum, slot, micro_batch, arrived_sum(index, host, group), micro_batch == last, add);
    }
  }
}

}  // namespace terrace
