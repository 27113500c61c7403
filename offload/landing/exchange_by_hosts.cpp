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

ExchangeByHosts::ExchangeByHosts(const ExchangeRanks& ranks, const Summing& summing,
                                 std::span<std::byte* const> incoming, size_t most_runs)
    : ranks_(ranks),
      hosts_(ranks.hosts()),
      summing_(summing),
      own_(ranks, most_runs),
      parts_(incoming.size()) {
  const uint32_t groups = ranks_.rounds.groups_per_host();
  for (size_t s = 0; s < parts_.size(); ++s) {
    Parts& parts = parts_[s];
    parts.incoming = incoming[s];
    const uint64_t sums = (hosts_.hosts - 1) * groups;
    parts.sums = parts.incoming + hosts_.ranks * summing_.part_bytes;
    parts.crossing_in = parts.sums + sums * summing_.sum_bytes;
    parts.crossing_out = has_codes() ? parts.crossing_in + sums * summing_.code_bytes : parts.sums;
    if (ranks_.dry) continue;
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
  const StagedLanding& staged = *parts_[index].staged;
  const ChunkId chunk = staged.landing.chunk;
  if (rank == ranks_.rank())
    return staged.memory + owners(chunk, host).first_element() * ranks_.element_bytes(chunk);
  return parts_[index].incoming +
         (host * hosts_.ranks_per_host() + hosts_.place_on_host(rank)) * summing_.part_bytes;
}

std::byte* ExchangeByHosts::sum_at(std::byte* sums, uint64_t bytes, uint32_t host, uint32_t group) const {
  const uint32_t place = host < ranks_.own_host() ? host : host - 1;
  return sums + (place * ranks_.rounds.groups_per_host() + group) * bytes;
}

void ExchangeByHosts::send(const StagedLanding& staged) {
  const size_t index = staged.slot;
  Parts& parts = parts_[index];
  parts.staged = &staged;
  const ChunkId chunk = staged.landing.chunk;
  const uint32_t round = staged.landing.micro_batch, mine = ranks_.rank();
  const RankGroup summing = hosts_.across_hosts_of(mine);  // this rank sums for them
  const uint64_t for_me = ranks_.elements_of(summing, chunk, staged.runs) * ranks_.element_bytes(chunk);
  const uint32_t senders = ranks_.rounds.ranks_with_data(round, ranks_.own_host());
  const bool has_data = ranks_.rounds.has(round, mine);
  moved_.in += (senders - (has_data ? 1 : 0)) * for_me;
  if (has_data)
    moved_.out += ranks_.elements_of_all(chunk, staged.runs) * ranks_.element_bytes(chunk) - for_me;
  parts.is_summed = false;
  parts.inside.begin({kExchangedGradients, index_of(chunk), CopyName::Link::exchange}, hosts_.hosts);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) send_inside(index, host);
  if (ranks_.overlaps) return;
  sum_up_to(index);
  parts.between.wait_done(ranks_.watch);  // a failure is that of the addition
}

void ExchangeByHosts::send_inside(size_t index, uint32_t host) {
  const StagedLanding& staged = *parts_[index].staged;
  Parts& parts = parts_[index];
  const ChunkId chunk = staged.landing.chunk;
  const uint64_t bytes = ranks_.element_bytes(chunk);
  const uint32_t round = staged.landing.micro_batch;
  const bool has_data = ranks_.rounds.has(round, ranks_.rank());
  const RankGroup neighbours = hosts_.on_host_of(ranks_.rank());
  const ShardTiles tiles = owners(chunk, host);
  const PartSpan mine = part_in(staged.runs, tiles);
  const CommNote note = ranks_.next_note(chunk, sent_inside_);
  if (ranks_.dry) {
    const uint64_t there =
        has_data ? ranks_.elements_of(hosts_.on_host_of(hosts_.rank(host, 0)), chunk, staged.runs) : 0;
    const uint32_t senders = ranks_.rounds.ranks_with_data(round, ranks_.own_host()) - (has_data ? 1 : 0);
    const CommPart out{staged.memory, has_data ? (there - mine.elements()) * bytes : 0};
    CommPart in{parts.incoming, senders * mine.elements() * bytes};
    return ranks_.communicator.exchange_within(neighbours, Lane::exchange, {&out, 1}, {&in, 1}, staged.copied,
                                               parts.inside, note);
  }
  const uint64_t before_mine = mine.offset_in(tiles) * bytes;
  for (uint32_t i = 0; i < neighbours.count; ++i) {
    const uint32_t rank = neighbours.rank(i);
    const PartSpan part = part_in(staged.runs, ranks_.shards.of(chunk, hosts_.rank(host, i)));
    std::byte* const from = parts.incoming + (host * neighbours.count + i) * summing_.part_bytes;
    parts.to[host][rank] = {staged.memory + part.begin * bytes, part.elements() * bytes, !has_data};
    parts.from[host][rank] = {from + before_mine, mine.elements() * bytes};
  }
  ranks_.communicator.exchange_within(neighbours, Lane::exchange, parts.to[host], parts.from[host],
                                      staged.copied, parts.inside, note);
}

// Every rank sends its sums, of whatever became of the parts, so that all ask for the same exchanges.
void ExchangeByHosts::send_between(size_t index) {
  const StagedLanding& staged = *parts_[index].staged;
  Parts& parts = parts_[index];
  const ChunkId chunk = staged.landing.chunk;
  const uint32_t round = staged.landing.micro_batch;
  const RankGroup others = hosts_.across_hosts_of(ranks_.rank());
  const PartSpan mine = part_in(staged.runs, ranks_.shards.own(chunk));
  const uint64_t before_mine = crossing(mine.offset_in(ranks_.shards.own(chunk)));
  count_between(staged);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) {
    if (host != ranks_.own_host() && !parts.inside.failed()) sum_groups(index, host);
  }
  parts.is_summed = true;
  parts.between.begin({kExchangedGradients, index_of(chunk), CopyName::Link::exchange},
                      ranks_.rounds.groups_per_host());
  for (uint32_t group = 0; group < ranks_.rounds.groups_per_host(); ++group) {
    const bool has_group = group < ranks_.rounds.groups_on(ranks_.own_host(), round);
    const CommNote note = ranks_.next_note(chunk, sent_between_);
    if (ranks_.dry) {
      uint64_t senders = 0;
      for (uint32_t host = 0; host < hosts_.hosts; ++host)
        senders += host != ranks_.own_host() && group < ranks_.rounds.groups_on(host, round) ? 1 : 0;
      const uint64_t theirs = ranks_.elements_of(others, chunk, staged.runs) - mine.elements();
      const CommPart out{parts.crossing_out, has_group ? crossing(theirs) : 0};
      CommPart in{parts.crossing_in, senders * crossing(mine.elements())};
      ranks_.communicator.exchange_within(others, Lane::exchange_between_hosts, {&out, 1}, {&in, 1},
                                          &parts.inside, parts.between, note);
      continue;
    }
    std::vector<CommPart>& to = parts.to[hosts_.hosts + group];
    std::vector<CommPart>& from = parts.from[hosts_.hosts + group];
    for (uint32_t host = 0; host < hosts_.hosts; ++host) {
      if (host == ranks_.own_host()) continue;
      const ShardTiles tiles = owners(chunk, host);
      const PartSpan part = part_in(staged.runs, tiles);
      to[others.rank(host)] = {
          sum_at(parts.crossing_out, crossing_sum_bytes(), host, group) + crossing(part.offset_in(tiles)),
          crossing(part.elements()), !has_group};
      from[others.rank(host)] = {sum_at(parts.crossing_in, crossing_sum_bytes(), host, group) + before_mine,
                                 crossing(mine.elements())};
    }
    ranks_.communicator.exchange_within(others, Lane::exchange_between_hosts, to, from, &parts.inside,
                                        parts.between, note);
  }
}

void ExchangeByHosts::count_between(const StagedLanding& staged) {
  const ChunkId chunk = staged.landing.chunk;
  const uint32_t round = staged.landing.micro_batch;
  const uint64_t own = part_in(staged.runs, ranks_.shards.own(chunk)).elements();
  const uint64_t theirs = ranks_.elements_of(hosts_.across_hosts_of(ranks_.rank()), chunk, staged.runs) - own;
  uint64_t groups = 0;
  for (uint32_t host = 0; host < hosts_.hosts; ++host)
    groups += host != ranks_.own_host() ? ranks_.rounds.groups_on(host, round) : 0;
  const uint64_t in = groups * crossing(own);
  const uint64_t out = ranks_.rounds.groups_on(ranks_.own_host(), round) * crossing(theirs);
  moved_ += {in, out, in, out};
}

void ExchangeByHosts::sum_groups(size_t index, uint32_t host) {
  const StagedLanding& staged = *parts_[index].staged;
  const PartSpan whole = part_in(staged.runs, owners(staged.landing.chunk, host));
  const ComputingScope computing(ranks_.watch);
  summing_.workers.parallel_for(ranks_.dry ? 0 : divide_up(whole.elements(), kTaskElements),
                                [&](size_t task) {
                                  const uint64_t begin = whole.begin + task * kTaskElements;
                                  sum_piece(index, host, begin, std::min(whole.end, begin + kTaskElements));
                                });
}

// In the order of micro-batches, with the rounding that an accumulator has. What lies between runs crosses,
// too, and nobody looks at it.
void ExchangeByHosts::sum_piece(size_t index, uint32_t host, uint64_t begin, uint64_t end) {
  const StagedLanding& staged = *parts_[index].staged;
  const Parts& parts = parts_[index];
  const ChunkId chunk = staged.landing.chunk;
  const DataType type = ranks_.shards.space().section_of(chunk).type;
  const uint32_t round = staged.landing.micro_batch;
  const uint64_t sum_type_bytes = bytes_of(summing_.sum_type);
  const ShardTiles tiles = owners(chunk, host);
  const uint32_t first_rank = hosts_.rank(ranks_.own_host(), 0),
                 ranks = ranks_.rounds.ranks_with_data(round, ranks_.own_host());
  for (const GradientRun& run : staged.runs) {
    const uint64_t first = std::max(begin, run.first_element), last = std::min(end, run.end());
    if (first >= last) continue;
    const uint64_t before = first - tiles.first_element();
    for (uint32_t i = 0; i < ranks; ++i) {
      std::byte* const sum = sum_at(parts.sums, summing_.sum_bytes, host, i / ranks_.rounds.group);
      accumulate(summing_.instruction_set,
                 {.accumulator = sum + before * sum_type_bytes,
                  .accumulator_type = summing_.sum_type,
                  .gradient = part_of(index, first_rank + i, host) + before * bytes_of(type),
                  .gradient_type = type,
                  .count = last - first,
                  .first = i % ranks_.rounds.group == 0});
    }
  }
  const uint64_t before = begin - tiles.first_element();
  for (uint32_t group = 0; has_codes() && group < ranks_.rounds.groups_on(ranks_.own_host(), round); ++group)
    quantize(summing_.instruction_set, ranks_.rounds.gradient_bits,
             sum_at(parts.sums, summing_.sum_bytes, host, group) + before * sum_type_bytes, summing_.sum_type,
             end - begin, sum_at(parts.crossing_out, summing_.code_bytes, host, group) + crossing(before));
}

// The own host's sums have become codes, so those of others take their place.
const std::byte* ExchangeByHosts::arrived_sum(size_t index, uint32_t host, uint32_t group) {
  const StagedLanding& staged = *parts_[index].staged;
  const Parts& parts = parts_[index];
  const std::byte* const arrived = sum_at(parts.crossing_in, crossing_sum_bytes(), host, group);
  if (!has_codes()) return arrived;
  std::byte* const sum = sum_at(parts.sums, summing_.sum_bytes, host, group);
  const ShardTiles own = ranks_.shards.own(staged.landing.chunk);
  const PartSpan mine = part_in(staged.runs, own);
  const uint64_t before = mine.offset_in(own);
  const ComputingScope computing(ranks_.watch);
  summing_.workers.parallel_for(ranks_.dry ? 0 : divide_up(mine.elements(), kTaskElements), [&](size_t task) {
    const uint64_t first = before + task * kTaskElements,
                   end = std::min(before + mine.elements(), first + kTaskElements);
    dequantize(summing_.instruction_set, ranks_.rounds.gradient_bits, arrived + crossing(first),
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
  while (!parts_[index].is_summed) sum_next();
}

void ExchangeByHosts::ask() {
  while (!parts_[next_to_sum_].is_summed) sum_next();
}

void ExchangeByHosts::sum_next() {
  parts_[next_to_sum_].inside.wait_done(ranks_.watch);
  sum_what_is_there();
}

bool ExchangeByHosts::has_arrived(const StagedLanding& staged) {
  sum_what_is_there();
  return parts_[staged.slot].is_summed && parts_[staged.slot].between.done();
}

void ExchangeByHosts::add(const StagedLanding& staged, Add add) {
  const size_t index = staged.slot;
  sum_up_to(index);
  parts_[index].between.wait(ranks_.watch);
  const uint32_t round = staged.landing.micro_batch, per_host = hosts_.ranks_per_host();
  const uint32_t last = ranks_.rounds.last_of(round);
  own_.begin(staged);
  for (uint32_t host = 0; host < hosts_.hosts; ++host) {
    const uint32_t first = ranks_.rounds.number(round, host * per_host),
                   ranks = ranks_.rounds.ranks_with_data(round, host);
    if (host == ranks_.own_host()) {
      for (uint32_t i = 0; i < ranks; ++i)
        own_.add(OwnParts::Added::gradient, first + i, part_of(index, hosts_.rank(host, i), host),
                 first + i == last, add);
      continue;
    }
    for (uint32_t group = 0; group < ranks_.rounds.groups_on(host, round); ++group) {
      const uint32_t micro_batch = std::min(first + (group + 1) * ranks_.rounds.group - 1, last);
      own_.add(OwnParts::Added::group_sum, micro_batch, arrived_sum(index, host, group), micro_batch == last,
               add);
    }
  }
}

}  // namespace terrace
