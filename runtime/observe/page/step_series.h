// StepSeries: the steps of a run as a bounded number of points, each the sum of consecutive steps. While
// there is room a point is one step. When there is none, neighbours are merged, and from then on points hold
// twice as many steps. Sums stay exact under merging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

// The range of the finite values among those added.
struct ValueRange {
  uint64_t count = 0;
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value);
  void add(const ValueRange& other);
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

// Consecutive steps, added up.
struct StepPoint {
  uint64_t first_step = 0;
  uint64_t count = 0;
  uint64_t skipped = 0;  // skipped steps among them, in fp16
  uint64_t tokens = 0;
  ValueRange loss;
  ValueRange gradient_norm;
  ValueRange step_ns;
  double learning_rate = 0;  // the last step's
  double loss_scale = 1;     // the last step's
  uint64_t total_ns = 0;
  uint64_t forward_backward_ns = 0;
  uint64_t update_ns = 0;
  uint64_t keeping_ns = 0;
  OffloadCounters moved;

  void add(const StepReport& step);
  void add(const StepPoint& next);
};

class StepSeries {
 public:
  // Allocates all of its memory; `room` is even.
  explicit StepSeries(size_t room);

  // Adds the next step.
  void add(const StepReport& step);
  size_t room() const { return room_; }
  std::span<const StepPoint> points() const { return points_; }
  // The steps in every point but the last, which may have fewer.
  uint64_t steps_per_point() const { return steps_per_point_; }

 private:
  void merge_neighbours();

  size_t room_;
  std::vector<StepPoint> points_;
  uint64_t steps_per_point_ = 1;
};

}  // namespace terrace
