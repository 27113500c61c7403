// PollPauses: how long to sleep before looking again at something that does not wake who waits for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace {

// Looking costs a processor that others need, and sleeping costs latency: no pause while something has just
// moved, then pauses that grow with the wait: what is waited for is noticed by a 32nd of the wait too late,
// once that is more than the first pauses. Not thread-safe.
class PollPauses {
 public:
  static constexpr uint64_t kBusyNs = 20'000;
  static constexpr uint64_t kFirstPauseNs = 50'000;
  static constexpr uint64_t kSteadyPauseNs = 200'000;
  static constexpr uint64_t kLongestPauseNs = 1'000'000;
  static constexpr uint64_t kPartOfWait = 32;

  void moved(uint64_t now_ns) {
    last_move_ns_ = now_ns;
    pause_ns_ = 0;
  }
  // After a look at which nothing had moved.
  uint64_t next_pause_ns(uint64_t now_ns) {
    const uint64_t waited_ns = now_ns - last_move_ns_;
    if (waited_ns < kBusyNs) return 0;
    pause_ns_ = pause_ns_ == 0 ? kFirstPauseNs : std::min(2 * pause_ns_, kSteadyPauseNs);
    return std::max(pause_ns_, std::min(waited_ns / kPartOfWait, kLongestPauseNs));
  }

 private:
  uint64_t last_move_ns_ = 0;
  uint64_t pause_ns_ = 0;
};

}  // namespace terrace
