// PlanningWatch: says how far a plan has come while it is made, from a thread of its own.
#pragma once

#include <chrono>

#include <terrace/base/log.h>
#include <terrace/base/polling_thread.h>
#include <terrace/runtime/planning/planning_progress.h>

namespace terrace {

class PlanningWatch {
 public:
  // `log` outlives this.
  explicit PlanningWatch(Log& log) : progress_(log) {}
  PlanningProgress& progress() { return progress_; }

 private:
  PlanningProgress progress_;
  PollingThread thread_{std::chrono::milliseconds(250), [this] {
                          progress_.note();
                          return true;
                        }};
};

}  // namespace terrace
