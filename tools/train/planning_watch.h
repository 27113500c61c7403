// PlanningWatch: says how far a plan has come while it is made, from a thread of its own.
#pragma once

#include <condition_variable>
#include <thread>

#include <terrace/base/log.h>
#include <terrace/base/mutex.h>
#include <terrace/runtime/planning/planning_progress.h>

namespace terrace {

class PlanningWatch {
 public:
  // `log` outlives this.
  explicit PlanningWatch(Log& log);
  ~PlanningWatch();
  PlanningProgress& progress() { return progress_; }

 private:
  void watch();

  PlanningProgress progress_;
  Mutex mutex_;
  std::condition_variable_any over_;
  bool is_over_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
