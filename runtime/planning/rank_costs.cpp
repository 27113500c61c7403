#include <terrace/runtime/planning/rank_costs.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace terrace {
namespace {

// A larger part is announced and asked for before it comes, by Open MPI over TCP: 1 MiB with its own header
// (comm/ports/mpi/mpi_port.cpp).
constexpr double kLargestPromptBytes = (1 << 20) - 1024;
// As many messages of an operation are under way at once (MessageFlow).
constexpr double kWindow = 8;

// A header, and then the parts.
double delays_of(double partners, double part_bytes) {
  if (partners == 0) return 0;
  return part_bytes > kLargestPromptBytes ? 1 + 3 * std::ceil(partners / kWindow) : 2;
}

double doublings(uint32_t hosts) {
  return std::bit_width(hosts - 1);
}

RankTerms by_doubling(const RankLinks& links, RankMoves moves) {
  const double rounds = doublings(links.hosts());
  moves.messages = links.on_host - 1;
  moves.network_messages = rounds;
  moves.delays = rounds == 0 ? 0 : rounds * delays_of(1, moves.network_bytes / rounds);
  return terms_of(links, moves);
}

}  // namespace

RankMoves moves_in_one_level(const RankLinks& links, double bytes) {
  const double others = links.ranks - 1, here = links.on_host - 1, elsewhere = others - here;
  const double part = bytes / std::max(1.0, others);
  return {here, part * here, elsewhere, part * elsewhere, delays_of(elsewhere, part)};
}

RankMoves moves_in_two_levels(const RankLinks& links, double bytes, double network_bytes,
                              uint32_t operations) {
  const double hosts = links.hosts(), partners = operations * (hosts - 1);
  const double delays = delays_of(partners, network_bytes / std::max(1.0, partners));
  return {hosts * (links.on_host - 1), bytes, partners, network_bytes, delays};
}

RankTerms operator*(double times, const RankTerms& terms) {
  return {times * terms.host_latency, times * terms.host_bytes, times * terms.network_latency,
          times * terms.network_bytes};
}

RankTerms terms_of(const RankLinks& links, const RankMoves& moves) {
  return {moves.messages * links.message_seconds, quotient(moves.bytes, links.bytes),
          moves.network_messages * links.network_message_seconds + moves.delays * links.network_delay,
          quotient(moves.network_bytes, links.network_bytes)};
}

RankTerms gather_terms(const RankLinks& links, const GatherShape& shape, Spreading spreading) {
  const double ranks = links.ranks, on_host = links.on_host;
  const bool in_two = links.even() && links.hosts() > 1;
  const RankMoves moves = in_two ? moves_in_two_levels(links, shape.chunk_bytes * (on_host - 1) / on_host,
                                                       shape.crossing_bytes * (links.hosts() - 1) / ranks, 1)
                                 : moves_in_one_level(links, shape.chunk_bytes * (ranks - 1) / ranks);
  return spreading == Spreading::direct ? terms_of(links, moves) : by_doubling(links, moves);
}

RankTerms exchange_terms(const RankLinks& links, const ExchangeShape& shape, Spreading spreading) {
  const double ranks = links.ranks, on_host = links.on_host;
  const double sums = shape.host_groups * shape.sum_bytes * (links.hosts() - 1) / ranks;
  const RankMoves moves =
      shape.host_groups > 0
          ? moves_in_two_levels(links, shape.chunk_bytes * (on_host - 1) / on_host, sums, shape.host_groups)
          : moves_in_one_level(links, shape.chunk_bytes * (ranks - 1) / ranks);
  return spreading == Spreading::direct ? terms_of(links, moves) : by_doubling(links, moves);
}

}  // namespace terrace
