#include <terrace/runtime/train/planning/rank_costs.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace terrace {
namespace {

// A larger part is announced and asked for before it comes, by Open MPI over TCP: 1 MiB with its own header
// (comm/mpi_port.cpp).
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

RankTerms fresh_shares(const RankLinks& links, uint32_t group, double parameter_bytes) {
  const double copies = static_cast<double>(links.ranks) / group;
  const double here = std::max(1.0, static_cast<double>(links.on_host) / group);
  const double part = parameter_bytes / links.ranks;
  return terms_of(links, {.messages = here - 1,
                          .bytes = (here - 1) * part,
                          .network_messages = copies - here,
                          .network_bytes = (copies - here) * part,
                          .delays = delays_of(copies - here, part)});
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

RankTerms gather_terms(const RankLinks& links, double chunk_bytes, Spreading spreading) {
  const double ranks = links.ranks, on_host = links.on_host;
  const bool in_two = links.even() && links.hosts() > 1;
  const RankMoves moves = in_two ? moves_in_two_levels(links, chunk_bytes * (on_host - 1) / on_host,
                                                       chunk_bytes * (links.hosts() - 1) / ranks, 1)
                                 : moves_in_one_level(links, chunk_bytes * (ranks - 1) / ranks);
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

double gather_seconds(const RankLinks& links, const SubGroupQuestion& question) {
  const RankTerms all = gather_terms(links, question.chunk_bytes, Spreading::direct);
  const RankUse& use = question.use;
  // What is kept of other hosts is passed on within this one.
  return all.total() * use.crossing_gathers +
         (all.host_latency + all.host_bytes) * (use.gathers - use.crossing_gathers);
}

std::optional<SubGroups> best_sub_groups(const RankLinks& links, const SubGroupQuestion& question) {
  std::optional<SubGroups> best;
  const auto consider = [&](uint32_t group) {
    const double share = question.parameter_bytes / group;
    if (group >= links.ranks || share > question.room_bytes) return;
    RankLinks inner = links;
    inner.ranks = group;
    inner.on_host = std::min(group, links.on_host);
    const double seconds =
        question.use.gathers * gather_terms(inner, question.chunk_bytes, Spreading::direct).total() +
        fresh_shares(links, group, question.parameter_bytes).total();
    if (!best || seconds < best->seconds) best = SubGroups{group, seconds, share};
  };
  if (!links.even()) return best;
  for (uint32_t s = 1; s < links.on_host; ++s) {
    if (links.on_host % s == 0) consider(s);
  }
  for (uint32_t hosts = 1; hosts < links.hosts(); ++hosts) {
    if (links.hosts() % hosts == 0) consider(hosts * links.on_host);
  }
  return best;
}

uint32_t sub_groups_win_from(const RankLinks& links, const SubGroupQuestion& question) {
  RankLinks fewer = links;
  for (uint32_t hosts = 1; hosts <= links.hosts(); ++hosts) {
    fewer.ranks = hosts * links.on_host;
    const std::optional<SubGroups> groups = best_sub_groups(fewer, question);
    if (groups && groups->seconds < gather_seconds(fewer, question)) return fewer.ranks;
  }
  return 0;
}

}  // namespace terrace
