// PlanningProgress: tells a log how far a plan has come that takes longer than two seconds. The first line is
// one of the log, those after it pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/base/mutex.h>

namespace terrace {

// Thread-safe: one thread plans, and another one says now and then how far it is.
class PlanningProgress {
 public:
  // Log and clock (null: the steady one) outlive this.
  explicit PlanningProgress(Log& log, const Clock* clock = nullptr);
  ~PlanningProgress();
  PlanningProgress(const PlanningProgress&) = delete;
  PlanningProgress& operator=(const PlanningProgress&) = delete;

  // The steps that are planned from now on have chunks of another size, one of at most `most_sizes`.
  void begin_size(size_t most_sizes);
  // The steps that are planned from now on have the chunks of the plan that is taken.
  void begin_taken();
  // Returns how many sizes were begun.
  size_t size_count();
  // Says how far the plan is, if it is time to.
  void note();

 private:
  const SteadyClock steady_;
  Log& log_;
  const Clock& clock_;
  const uint64_t begun_ns_;
  Mutex mutex_;
  uint64_t next_ns_ TERRACE_GUARDED_BY(mutex_);
  std::string what_ TERRACE_GUARDED_BY(mutex_);
  size_t size_count_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool is_shown_ TERRACE_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
