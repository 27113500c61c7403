// StepRounds: how the micro-batches of a step are spread over ranks. In round a every rank computes at most
// one of them, side by side: rank r of N the one with the number aN + r. Where that is not below their count,
// the rank has none in that round, and takes part in it without data. The numbers order every sum over
// micro-batches, so that no bit depends on N. Pure arithmetic.
//
// Groups: the gradients of `group` consecutive micro-batches are summed before they join the sum of the step,
// ((g_0 + g_1) + ...) + ((g_G + g_G+1) + ...) + ... The numbers depend on the size of a group, and on nothing
// that computes or holds one.
//
// Hosts: ranks are numbered host by host, as many on each, so that consecutive micro-batches of a round are
// on one host. Where groups fit there, each of them is on one host in one round, whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include <terrace/comm/operations/rank_group.h>

namespace terrace {

struct StepRounds {
  uint32_t micro_batches = 1;  // of a step, over all ranks; at least 1
  uint32_t ranks = 1;          // at least 1
  uint32_t group = 1;          // micro-batches of a gradient group; at least 1
  uint32_t hosts = 1;          // divides the ranks
  uint32_t gradient_bits = 0;  // to which what joins the sum of the step is rounded; 0: not (OffloadOptions)

  uint32_t count() const { return (micro_batches - 1) / ranks + 1; }
  bool is_last(uint32_t round) const { return round + 1 == count(); }
  // The number of the rank's micro-batch in a round; at or above micro_batches: it has none.
  uint32_t number(uint32_t round, uint32_t rank) const { return round * ranks + rank; }
  bool has(uint32_t round, uint32_t rank) const { return number(round, rank) < micro_batches; }
  // The last micro-batch of a round.
  uint32_t last_of(uint32_t round) const { return std::min((round + 1) * ranks, micro_batches) - 1; }
  // True if the sum of a group is not that of the step so far: where a step has several, or where it is
  // rounded. Else groups change nothing.
  bool has_groups() const { return group > 1 && (group < micro_batches || gradient_bits > 0); }

  HostLayout layout() const { return {ranks, hosts}; }
  // True if groups are summed on their hosts, and their sums cross from host to host. Gradients that are
  // rounded are groups of one where there are no others.
  bool sums_on_hosts() const {
    return hosts > 1 && (has_groups() || gradient_bits > 0) && layout().ranks_per_host() % group == 0;
  }
  // The groups that a host can have in a round, and those that it has; where they are summed on hosts.
  uint32_t groups_per_host() const { return layout().ranks_per_host() / group; }
  uint32_t groups_on(uint32_t host, uint32_t round) const {
    return (ranks_with_data(round, host) + group - 1) / group;
  }
  // The ranks that have a micro-batch in the round, and those on that host.
  uint32_t ranks_with_data(uint32_t round) const {
    return std::min(ranks, micro_batches - std::min(micro_batches, number(round, 0)));
  }
  uint32_t ranks_with_data(uint32_t round, uint32_t host) const {
    const uint32_t there = layout().ranks_per_host(), all = ranks_with_data(round);
    return std::min(there, all - std::min(all, host * there));
  }
};

}  // namespace terrace
