#include <terrace/offload/plan/rank_bytes.h>

namespace terrace {
namespace {

uint64_t elements_of(const RankGroup& group, const ChunkShards& shards, ChunkId chunk) {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < group.count; ++i) elements += shards.of(chunk, group.rank(i)).elements();
  return elements;
}

}  // namespace

RankBytes gather_bytes(const ChunkShards& shards, const HostLayout& hosts, ChunkId chunk,
                       uint32_t parameter_bits, const RankGroup& crossing) {
  const Section& section = shards.space().section_of(chunk);
  const uint32_t bits = bits_of(section, parameter_bits), rank = shards.rank();
  const uint64_t own = shards.own(chunk).elements();
  const uint64_t passing = elements_of(hosts.across_hosts_of(rank), shards, chunk);
  const uint64_t others = elements_of(crossing, shards, chunk) - own;
  RankBytes bytes;
  bytes.between_in = crossing_bytes(others, section.type, bits);
  bytes.between_out = crossing_bytes(own, section.type, bits) * (crossing.count - 1);
  bytes.in = bytes.between_in + shards.space().param_bytes(chunk) - passing * bytes_of(section.type);
  bytes.out = bytes.between_out + passing * bytes_of(section.type) * (hosts.ranks_per_host() - 1);
  return bytes;
}

RankBytes exchange_bytes(const ChunkShards& shards, const StepRounds& rounds, ChunkId chunk,
                         DataType sum_type) {
  const HostLayout hosts = rounds.layout();
  const uint32_t rank = shards.rank(), host = hosts.host_of(rank);
  const uint64_t element_bytes = bytes_of(shards.space().section_of(chunk).type);
  const uint64_t all = shards.space().param_bytes(chunk), own = shards.param_bytes(chunk);
  const bool sums = rounds.sums_on_hosts();
  // What this rank adds up: of its own share, or of all for which its host's sums are.
  const uint64_t passing =
      sums ? elements_of(hosts.across_hosts_of(rank), shards, chunk) * element_bytes : own;
  const uint64_t here =
      hosts.hosts > 1 ? elements_of(hosts.on_host_of(rank), shards, chunk) * element_bytes : all;
  RankBytes bytes;
  for (uint32_t round = 0; round < rounds.count(); ++round) {
    const uint64_t mine = rounds.has(round, rank) ? 1 : 0;
    const uint64_t neighbours = rounds.ranks_with_data(round, host);
    bytes.out += mine * (all - passing);
    bytes.in += (neighbours - mine) * passing;
    if (!sums) {
      const uint64_t others = rounds.ranks_with_data(round) - neighbours;
      bytes.in += others * own;
      bytes.between_in += others * own;
      bytes.between_out += mine * (all - here);
      continue;
    }
    uint64_t groups = 0;
    for (uint32_t h = 0; h < hosts.hosts; ++h) groups += h != host ? rounds.groups_on(h, round) : 0;
    const uint64_t in = groups * crossing_bytes(own / element_bytes, sum_type, rounds.gradient_bits);
    const uint64_t out = rounds.groups_on(host, round) *
                         crossing_bytes((passing - own) / element_bytes, sum_type, rounds.gradient_bits);
    bytes += {in, out, in, out};
  }
  return bytes;
}

uint64_t bytes_added(const ChunkShards& shards, const StepRounds& rounds, ChunkId chunk, DataType sum_type) {
  const uint64_t own = shards.param_bytes(chunk);
  if (!rounds.sums_on_hosts()) return own * rounds.micro_batches;
  const HostLayout hosts = rounds.layout();
  const uint32_t host = hosts.host_of(shards.rank());
  uint64_t on_host = 0, sums = 0;
  for (uint32_t round = 0; round < rounds.count(); ++round) {
    on_host += rounds.ranks_with_data(round, host);
    for (uint32_t h = 0; h < hosts.hosts; ++h) sums += h != host ? rounds.groups_on(h, round) : 0;
  }
  return own * on_host + sums * shards.own(chunk).elements() * bytes_of(sum_type);
}

}  // namespace terrace
