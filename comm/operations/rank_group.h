// RankGroup: some ranks of a run, equally far apart: all of them, those of a host, or one of every host.
// HostLayout: which rank is on which host, where ranks are numbered host by host and every host has as many.
// Pure arithmetic.
#pragma once

#include <compare>
#include <cstdint>

namespace terrace {

struct RankGroup {
  uint32_t first = 0;
  uint32_t stride = 1;  // at least 1
  uint32_t count = 1;   // at least 1

  uint32_t rank(uint32_t index) const { return first + index * stride; }
  bool has(uint32_t rank) const {
    return rank >= first && (rank - first) % stride == 0 && (rank - first) / stride < count;
  }
  // The place of a rank that it has.
  uint32_t index(uint32_t rank) const { return (rank - first) / stride; }

  auto operator<=>(const RankGroup&) const = default;
};

struct HostLayout {
  uint32_t ranks = 1;
  uint32_t hosts = 1;  // divides the ranks

  uint32_t ranks_per_host() const { return ranks / hosts; }
  uint32_t host_of(uint32_t rank) const { return rank / ranks_per_host(); }
  uint32_t place_on_host(uint32_t rank) const { return rank % ranks_per_host(); }
  uint32_t rank(uint32_t host, uint32_t place) const { return host * ranks_per_host() + place; }
  // The ranks of the host of `rank`.
  RankGroup on_host_of(uint32_t rank) const {
    return {host_of(rank) * ranks_per_host(), 1, ranks_per_host()};
  }
  // The ranks that have the place of `rank` on their hosts.
  RankGroup across_hosts_of(uint32_t rank) const { return {place_on_host(rank), ranks_per_host(), hosts}; }
  // The same on the hosts of its sub-group: so many consecutive hosts, which divide all of them.
  RankGroup across_sub_group_of(uint32_t rank, uint32_t sub_group) const {
    return {this->rank(host_of(rank) / sub_group * sub_group, place_on_host(rank)), ranks_per_host(),
            sub_group};
  }
};

}  // namespace terrace
