// PollPauses: how long to sleep before looking again at something that does not wake who waits for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace {

// Looking costs a processor that others need, and sleeping costs latency: no pause while something has just
// moved, then pauses that grow. Not thread-safe.
class PollPauses {
 public:
  static constexpr uint64_t kBusyNs = 20'000;
  static constexpr uint64_t kFirstPauseNs = 50'000;
  static constexpr uint64_t kLongestPauseNs = 200'000;

  void moved(uint64_t now_ns) {
    last_move_ns_ = now_ns;
    pause_ns_ = 0;
  }
  // After a look at which nothing had moved.
  uint64_t next_pause_ns(uint64_t now_ns) {
    if (now_ns - last_move_ns_ < kBusyNs) return 0;
    pause_ns_ = pause_ns_ == 0 ? kFirstPauseNs : std::min(2 * pause_ns_, kLongestPauseNs);
    return pause_ns_;
  }

 private:
  uint64_t last_move_ns_ = 0;
  uint64_t pause_ns_ = 0;
};

}  // namespace terrace
