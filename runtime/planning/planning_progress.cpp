#include <terrace/runtime/planning/planning_progress.h>

#include <fmt/format.h>

namespace terrace {
namespace {

constexpr uint64_t kFirstNs = 2'000'000'000;
constexpr uint64_t kBetweenNs = 500'000'000;

}  // namespace

PlanningProgress::PlanningProgress(Log& log, const Clock* clock)
    : log_(log),
      clock_(clock == nullptr ? steady_ : *clock),
      begun_ns_(clock_.now_ns()),
      next_ns_(begun_ns_ + kFirstNs) {}

PlanningProgress::~PlanningProgress() {
  const MutexLock lock(mutex_);
  if (is_shown_) log_.end_passing();
}

void PlanningProgress::begin_size(size_t most_sizes) {
  const MutexLock lock(mutex_);
  what_ = fmt::format("chunk size {} of at most {}, ", ++size_count_, most_sizes);
}

size_t PlanningProgress::size_count() {
  const MutexLock lock(mutex_);
  return size_count_;
}

void PlanningProgress::begin_taken() {
  const MutexLock lock(mutex_);
  what_ = "with the chunk size that is taken, ";
}

void PlanningProgress::note() {
  const MutexLock lock(mutex_);
  const uint64_t now = clock_.now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + kBetweenNs;
  const std::string line =
      fmt::format("planning: {}{:.0f} s so far", what_, static_cast<double>(now - begun_ns_) * 1e-9);
  if (is_shown_) return log_.in_passing(line);
  is_shown_ = true;
  log_.info(line);
}

}  // namespace terrace
