// What it costs ranks to bring a chunk together and to exchange its gradients: an alpha-beta model of the
// messages that the communicator sends, and of what other ways to do it would cost. Pure arithmetic; the
// formulas are those of docs/benchmarks_ranks.md.
#pragma once

#include <cstdint>

namespace terrace {

// The time of an amount; none where no rate is known.
inline double quotient(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

// The links of a rank. Seconds, and bytes per second; a rate of 0 takes no time.
struct RankLinks {
  uint32_t ranks = 1;
  uint32_t on_host = 1;        // at most `ranks`
  double message_seconds = 0;  // of an operation, for each rank of this host
  double bytes = 0;
  double network_message_seconds = 0;  // the same for ranks of other hosts,
  double network_bytes = 0;
  double network_delay = 0;  // and how long a message is on its way there; several are at once

  bool even() const { return ranks % on_host == 0; }
  uint32_t hosts() const { return (ranks - 1) / on_host + 1; }
};

// RankMoves: what one rank does in an operation.
struct RankMoves {
  double messages = 0;  // to ranks of this host
  double bytes = 0;     // to them or from them, where those are more
  double network_messages = 0;
  double network_bytes = 0;
  double delays = 0;  // one after the other
};
// With bytes for all other ranks alike.
RankMoves moves_in_one_level(const RankLinks& links, double bytes);
// First between the ranks of one place on their hosts, and for each host among the ranks of this one, or the
// other way round. Only where hosts have as many ranks. Between hosts there are `operations`, none where
// nothing crosses.
RankMoves moves_in_two_levels(const RankLinks& links, double bytes, double network_bytes,
                              uint32_t operations);

// RankTerms: the seconds of an operation, by what they depend on.
struct RankTerms {
  double host_latency = 0;
  double host_bytes = 0;
  double network_latency = 0;
  double network_bytes = 0;

  double latency() const { return host_latency + network_latency; }
  double bytes() const { return host_bytes + network_bytes; }
  double total() const { return latency() + bytes(); }
  RankTerms& operator+=(const RankTerms& more) {
    host_latency += more.host_latency, host_bytes += more.host_bytes;
    network_latency += more.network_latency, network_bytes += more.network_bytes;
    return *this;
  }
};
RankTerms operator*(double times, const RankTerms& terms);
RankTerms terms_of(const RankLinks& links, const RankMoves& moves);

// RankUse: what a rank does with others in a step.
struct RankUse {
  RankTerms seconds;  // one operation after the other
  uint32_t gathers = 0;
  uint32_t exchanges = 0;
};

// Whether a rank sends to each of the others itself, as it does, or passes on what it has got in log2(hosts)
// messages.
enum class Spreading : uint8_t { direct, doubling };

// Of the parameters of a chunk.
struct GatherShape {
  double chunk_bytes = 0;
  double crossing_bytes = 0;  // what a chunk takes between hosts: the same, or codes
};
RankTerms gather_terms(const RankLinks& links, const GatherShape& shape, Spreading spreading);

// Of the gradients of a chunk in a round.
struct ExchangeShape {
  double chunk_bytes = 0;
  double sum_bytes = 0;  // what the sum of a chunk takes between hosts, in its type or as codes
  uint32_t host_groups =
      0;  // gradient groups that a host sums in a round; 0: every gradient goes to its owner
};
// Doubling adds in the order of its messages, so it would change numbers.
RankTerms exchange_terms(const RankLinks& links, const ExchangeShape& shape, Spreading spreading);

}  // namespace terrace
