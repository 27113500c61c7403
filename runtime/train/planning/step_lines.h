// Lines of work of a planned step, each of which does one thing after another: a direction of the device's
// link, and what this rank exchanges with the others.
#pragma once

#include <algorithm>
#include <cstdint>

#include <terrace/offload/dry/step_record.h>
#include <terrace/runtime/train/planning/machine_rates.h>

namespace terrace {

inline double quotient(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

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

// Operations among ranks: each has a message for every other rank, which takes its time beside the bytes, and
// the bytes of ranks of this host and of others come at their own rates. In two levels, ranks that have one
// place on their hosts have messages for each other, and then the ranks of a host.
class RankLine {
 public:
  RankLine(const MachineRates& rates, uint32_t ranks, uint32_t on_host)
      : rates_(rates), on_host_(std::min(on_host, ranks) - 1), elsewhere_(ranks - 1 - on_host_) {}

  // One operation in which so many bytes come, or go where those are more; returns when it is over.
  double exchange(double earliest, uint64_t bytes) {
    const double per_rank = static_cast<double>(bytes) / std::max(1.0, on_host_ + elsewhere_);
    return move(earliest, per_rank * on_host_, per_rank * elsewhere_, latency());
  }
  // The one at `event` of a step, in two levels where there are so many hosts.
  template <typename Events>
  double exchange(const Events& events, size_t event, double earliest, uint32_t hosts) {
    const uint64_t bytes = events[event].amount;
    if (hosts == 1) return exchange(earliest, bytes);
    const RecordedEvent& next = events[event + 1];
    const uint64_t between = next.kind == RecordedEvent::Kind::between ? next.amount : 0;
    const double crossing = between > 0 ? (hosts - 1) * rates_.network_seconds : 0;
    return move(earliest, static_cast<double>(bytes - between), static_cast<double>(between),
                crossing + hosts * on_host_ * rates_.rank_seconds);
  }
  // What an operation without bytes takes.
  double latency() const { return on_host_ * rates_.rank_seconds + elsewhere_ * rates_.network_seconds; }
  // Of the last operation: the seconds in which a thread of this rank copied.
  double copied() const { return copied_; }

  double busy = 0;     // seconds of this step
  double waiting = 0;  // of these, that no rate makes shorter

 private:
  double move(double earliest, double here, double between, double latency) {
    copied_ = quotient(here, rates_.rank_bytes);
    const double seconds = latency + copied_ + quotient(between, rates_.network_bytes);
    free_at_ = std::max(free_at_, earliest) + seconds;
    busy += seconds;
    waiting += latency;
    return free_at_;
  }

  const MachineRates& rates_;
  const double on_host_;
  const double elsewhere_;
  double free_at_ = 0;
  double copied_ = 0;
};

}  // namespace terrace
