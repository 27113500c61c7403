// Lines of work of a planned step, each of which does one thing after another: a direction of the device's
// link, and what this rank exchanges with the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <terrace/offload/dry/step_record.h>
#include <terrace/reference/planning/machine_rates.h>
#include <terrace/runtime/planning/rank_costs.h>

namespace terrace {

// When a slot of the device can be used for the next thing.
struct SlotTimes {
  double free_at = 0;     // no copy of it is on its way
  double used_until = 0;  // by operations of the device
  bool behind_read = false;
  bool behind_ranks = false;
};

// Gradients that have left the device are there to be added up.
struct Landing {
  double at = 0;
  double elements = 0;
};

struct LinkLine {
  explicit LinkLine(double bytes_per_second) : rate(bytes_per_second) {}
  double rate;
  double free_at = 0;
  double busy = 0;
};

// What takes so long alone, where the other direction is busy for `overlap` seconds more.
inline double beside_other(const LinkRates& link, double seconds, double overlap) {
  const double alone = std::min(link.to_device, link.to_host);
  const double share = alone > 0 && link.each_way > 0 ? std::min(link.each_way / alone, 1.0) : 1.0;
  if (overlap <= 0) return seconds;
  return seconds <= overlap * share ? seconds / share : overlap + seconds - overlap * share;
}

// True if the event copies out of the device what has come there of other ranks, behind the end of the slot
// that has left for them.
template <typename Events>
bool comes_of_exchange(const Events& events, size_t event) {
  using Kind = RecordedEvent::Kind;
  return event >= 2 && event < events.size() && events[event].kind == Kind::work_out &&
         events[event - 1].kind == Kind::copy_out && events[event - 1].amount == 0 &&
         events[event - 2].kind == Kind::exchange;
}

// Operations among ranks. A thread of each rank has a message for every other rank of an operation, one after
// the other, and copies what ranks of this host have; the network carries one thing after another. Operations
// of one kind between hosts follow each other, but the headers of one cross while the parts of the one before
// do. In two levels, what is gathered crosses first, and what is exchanged is summed on its host first.
class RankLine {
 public:
  RankLine(const RankLinks& links, const BatchConfig& batch)
      : links_(links), hosts_(batch.hosts), rounds_(batch.rounds()) {}

  // The gather and the exchange at `event` of a step; both return when they are over.
  template <typename Events>
  double gather(const Events& events, size_t event, double earliest) {
    const RankMoves moves = moves_of(events, event, hosts_ > 1, 1);
    ++use_.gathers;
    return pass_on(moves, cross(gathers_, moves, earliest));
  }
  template <typename Events>
  double exchange(const Events& events, size_t event, double earliest) {
    const bool in_two = rounds_.sums_on_hosts();
    const RankMoves moves = moves_of(events, event, in_two, in_two ? rounds_.groups_per_host() : 1);
    ++use_.exchanges;
    return cross(exchanges_, moves, pass_on(moves, earliest));
  }
  // What an operation without bytes takes.
  double ballot() {
    const RankTerms terms = terms_of(links_, moves_in_one_level(links_, 0));
    use_.seconds += terms;
    return terms.total();
  }
  // Of the last operation: the seconds in which a thread of this rank copied.
  double copied() const { return copied_; }
  // What there was since it was last asked.
  RankUse take_use() { return std::exchange(use_, {}); }

 private:
  struct Crossing {
    double moving_since = 0;  // the parts of the last operation
    double over_at = 0;
  };
  template <typename Events>
  RankMoves moves_of(const Events& events, size_t event, bool in_two, uint32_t operations) const {
    const auto bytes = static_cast<double>(events[event].amount);
    if (!in_two) return moves_in_one_level(links_, bytes);
    const RecordedEvent& next = events[event + 1];
    const bool crosses = next.kind == RecordedEvent::Kind::between;
    const double between = crosses ? static_cast<double>(next.amount) : 0;
    return moves_in_two_levels(links_, bytes - between, between, crosses ? operations : 0);
  }
  double pass_on(const RankMoves& moves, double earliest) {
    const RankTerms terms = terms_of(links_, {.messages = moves.messages, .bytes = moves.bytes});
    use_.seconds += terms;
    copied_ = terms.host_bytes;
    if (moves.messages == 0) return earliest;
    return thread_free_at_ = std::max(thread_free_at_, earliest) + terms.total();
  }
  double cross(Crossing& lane, RankMoves moves, double earliest) {
    if (moves.network_messages == 0) return earliest;
    moves.messages = moves.bytes = 0;
    use_.seconds += terms_of(links_, moves);
    const double delay = links_.network_delay, on_the_way = (moves.delays - 1) * delay;
    moves.delays = 0;
    const double headers_at = std::max(earliest, lane.moving_since) + delay;
    lane.moving_since = std::max(headers_at, lane.over_at);
    const double begins = lane.moving_since + on_the_way - delay;
    network_free_at_ = std::max(network_free_at_, begins) + terms_of(links_, moves).total();
    return lane.over_at = network_free_at_ + delay;
  }

  const RankLinks links_;
  const uint32_t hosts_;
  const StepRounds rounds_;
  Crossing gathers_, exchanges_;
  double thread_free_at_ = 0;
  double network_free_at_ = 0;
  double copied_ = 0;
  RankUse use_;
};

}  // namespace terrace
