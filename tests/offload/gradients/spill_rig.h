// Trainings of the toy model that spill gradients, and a look at what goes to and from the files that hold
// them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/mutex.h>

#include "offload/commits/commit_rig.h"

namespace terrace {

inline constexpr UpdateMode kUpdateModes[] = {UpdateMode::after_backward, UpdateMode::next_forward,
                                              UpdateMode::during_backward};

// Host budgets, of the plan without limits: every gradient is spilled; none is; about half of them are.
inline uint64_t spill_all(const MemoryPlan& roomy) {
  return roomy.host_minimum_bytes;
}
inline uint64_t spill_nothing(const MemoryPlan& roomy) {
  return roomy.host_holding_bytes;
}
inline uint64_t spill_some(const MemoryPlan& roomy) {
  return (roomy.host_minimum_bytes + roomy.host_holding_bytes) / 2;
}

std::string text_of(const CommitCase& c);

// Every way to spill: wherever something is on nvme and gradients have a place of their own. Nothing durable.
std::vector<CommitCase> spilling_cases();

// Beside after_backward, where host memory does not hold the gradients of parameters that live on the device.
inline bool may_run(const CommitCase& c, UpdateMode mode) {
  return mode == UpdateMode::after_backward || c.parameters != Placement::none;
}

// Requests for the files of spilled gradients, over all engines of a run; any thread makes them.
class GradientRequests {
 public:
  using OnRequest = std::function<void(const io::Request&)>;
  explicit GradientRequests(OnRequest on_request = nullptr) : on_request_(std::move(on_request)) {}

  // For CommitCase::decorate; this outlives the engines.
  WrapEngine decorator();

  struct Totals {
    uint64_t reads = 0, writes = 0;
    uint64_t read_bytes = 0, written_bytes = 0;
    std::map<std::string, uint64_t> bytes_by_file;
  };
  Totals totals() const {
    const MutexLock lock(mutex_);
    return totals_;
  }

  static std::string file_of(const io::Request& request);

 private:
  class Spy;
  void note(const io::Request& request);

  const OnRequest on_request_;
  mutable Mutex mutex_;
  Totals totals_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
