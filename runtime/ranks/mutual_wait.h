// MutualWait: finds that all ranks wait for each other and nothing moves, as where one of them asks for a
// vote while the others ask for parameters: these are in lanes that do not meet, so that no operation fails.
// It is the decision alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <terrace/base/polling_thread.h>
#include <terrace/comm/liveness/heartbeat.h>
#include <terrace/comm/operations/communicator.h>

namespace terrace {

class RankWatch;

// Used by one thread.
class MutualWait {
 public:
  using Moment = std::chrono::steady_clock::time_point;
  // Longer than any one operation of a run takes over a slow network.
  static constexpr std::chrono::seconds kPatience{20};
  // Who has said nothing for so long is silent, and not known to wait.
  static constexpr std::chrono::milliseconds kSilent{3500};

  // Looks at what all ranks last said; moments never go back. Returns true where, for `kPatience`, each look
  // has found all of them waiting for others, and none that has carried out an operation since.
  bool look(std::span<const KnownStanding> all, Moment now);

 private:
  std::vector<uint64_t> operations_;  // of all ranks and lanes, when they began to wait
  std::optional<Moment> since_;
};

// A thread of the first rank that looks every second until it is destroyed. Where all ranks wait for each
// other, this one leaves, so that what they wait for fails on all of them and says who is where.
class MutualWaitThread {
 public:
  // Both outlive this.
  MutualWaitThread(RankWatch& watch, Communicator& communicator);

 private:
  PollingThread thread_;
};

}  // namespace terrace
