#include "train/planning_watch.h"

#include <chrono>

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kBetween{250};

}  // namespace

PlanningWatch::PlanningWatch(Log& log) : progress_(log), thread_([this] { watch(); }) {}

PlanningWatch::~PlanningWatch() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  thread_.join();
}

void PlanningWatch::watch() {
  const MutexLock lock(mutex_);
  while (!is_over_) {
    over_.wait_for(mutex_, kBetween);
    if (!is_over_) progress_.note();
  }
}

}  // namespace terrace
