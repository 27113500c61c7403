#include <terrace/offload/landing/rank_parts.h>

#include <algorithm>

namespace terrace {

PartSpan part_in(std::span<const GradientRun> runs, const ShardTiles& tiles) {
  const uint64_t first = tiles.first_element(), last = first + tiles.elements();
  PartSpan part;
  for (const GradientRun& run : runs) {
    const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
    if (begin >= end) continue;
    if (part.begin == part.end) part.begin = begin;
    part.end = end;
  }
  return part;
}

// What lies between two runs is sent where one rank owns the ends of both.
uint64_t ExchangeRanks::elements_of_all(ChunkId chunk, std::span<const GradientRun> runs) const {
  const uint64_t shard = shards.transfer_tiles(chunk) * kTileElements;
  uint64_t elements = 0, end = 0;
  for (const GradientRun& run : runs) {
    const bool has_hole = elements > 0 && (end - 1) / shard == run.first_element / shard;
    elements += run.element_count + (has_hole ? run.first_element - end : 0);
    end = run.end();
  }
  return elements;
}

uint64_t ExchangeRanks::elements_of(const RankGroup& group, ChunkId chunk,
                                    std::span<const GradientRun> runs) const {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < group.count; ++i)
    elements += part_in(runs, shards.of(chunk, group.rank(i))).elements();
  return elements;
}

RankBytes ExchangeRanks::bytes_with_all(const StagedLanding& staged) const {
  const ChunkId chunk = staged.landing.chunk;
  const uint32_t round = staged.landing.micro_batch, mine = rank();
  const uint64_t own = part_in(staged.runs, shards.own(chunk)).elements() * element_bytes(chunk);
  const uint32_t neighbours = rounds.ranks_with_data(round, hosts().host_of(mine));
  const uint64_t others = rounds.ranks_with_data(round) - neighbours;
  RankBytes bytes;
  bytes.in = (others + neighbours - (rounds.has(round, mine) ? 1 : 0)) * own;
  bytes.between_in = others * own;
  if (!rounds.has(round, mine)) return bytes;
  const uint64_t all = elements_of_all(chunk, staged.runs) * element_bytes(chunk);
  bytes.out = all - own;
  if (rounds.hosts > 1)
    bytes.between_out =
        all - elements_of(hosts().on_host_of(mine), chunk, staged.runs) * element_bytes(chunk);
  return bytes;
}

CommNote ExchangeRanks::next_note(ChunkId chunk, uint64_t& asked) const {
  return {kExchangedGradients, index_of(chunk), ++asked, exchanged_note(watch.events(), index_of(chunk))};
}

// Where groups are summed on hosts, one stays open only on the host that has the last of the round.
OwnParts::OwnParts(const ExchangeRanks& ranks, size_t most_runs)
    : ranks_(ranks),
      closes_groups_(ranks.rounds.sums_on_hosts() && ranks.own_host() + 1 < ranks.rounds.hosts) {
  adding_runs_.reserve(most_runs);
  own_runs_.reserve(most_runs);
}

void OwnParts::find_own(const GradientLanding& landing, std::vector<GradientRun>& runs) const {
  const ShardTiles own = ranks_.shards.own(landing.chunk);
  const uint64_t first = own.first_element(), last = first + own.elements();
  runs.clear();
  for (const GradientRun& run : landing.runs) {
    const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
    if (begin < end)
      runs.push_back({begin - first, end - begin, run.is_first, closes_groups_ ? 0 : run.open_group});
  }
}

GradientLanding OwnParts::of(const GradientLanding& landing) {
  find_own(landing, own_runs_);
  GradientLanding part = landing;
  part.runs = own_runs_;
  part.micro_batch = ranks_.rounds.last_of(landing.micro_batch);
  return part;
}

void OwnParts::begin(const StagedLanding& staged) {
  find_own(staged.landing, adding_runs_);
  adding_ = staged.landing;
  adding_.runs = adding_runs_;
}

void OwnParts::add(Added what, uint32_t micro_batch, const std::byte* gradient, bool is_last,
                   RankSum::Add add) {
  GradientLanding part = adding_;
  part.micro_batch = micro_batch;
  part.ends = adding_.ends && is_last;
  part.completes = adding_.completes && is_last;
  part.is_group_sum = what == Added::group_sum;
  add(part, gradient, is_last);
  for (GradientRun& run : adding_runs_) {
    run.is_first = false;
    if (ranks_.rounds.has_groups())
      run.open_group = part.is_group_sum ? 0 : micro_batch / ranks_.rounds.group + 1;
  }
}

void OwnParts::add_all(const StagedLanding& staged, FunctionRef<const std::byte*(uint32_t rank)> part_of,
                       RankSum::Add add) {
  const uint32_t round = staged.landing.micro_batch;
  const StepRounds& rounds = ranks_.rounds;
  begin(staged);
  for (uint32_t rank = 0; rank < ranks_.size() && rounds.has(round, rank); ++rank) {
    const bool is_last = rank + 1 == ranks_.size() || !rounds.has(round, rank + 1);
    this->add(Added::gradient, rounds.number(round, rank), part_of(rank), is_last, add);
  }
}

}  // namespace terrace
