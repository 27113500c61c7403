#include <terrace/runtime/observe/page/step_series.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/base/assert.h>

namespace terrace {

void ValueRange::add(double value) {
  if (!std::isfinite(value)) return;
  ++count;
  sum += value;
  least = std::min(least, value);
  most = std::max(most, value);
}

void ValueRange::add(const ValueRange& other) {
  count += other.count;
  sum += other.sum;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

namespace {

StepPoint point_of(const StepReport& step) {
  StepPoint point;
  point.count = 1;
  point.skipped = step.skipped ? 1 : 0;
  point.tokens = step.tokens;
  point.loss.add(step.loss);
  point.gradient_norm.add(step.gradient_norm);
  point.step_ns.add(static_cast<double>(step.total_ns));
  point.learning_rate = step.learning_rate;
  point.loss_scale = step.loss_scale;
  point.total_ns = step.total_ns;
  point.forward_backward_ns = step.forward_backward_ns;
  point.update_ns = step.update_ns;
  point.keeping_ns = step.keeping_ns;
  point.moved = step.moved;
  return point;
}

}  // namespace

void StepPoint::add(const StepReport& step) {
  if (count == 0) first_step = step.step;
  add(point_of(step));
}

void StepPoint::add(const StepPoint& next) {
  count += next.count;
  skipped += next.skipped;
  tokens += next.tokens;
  loss.add(next.loss);
  gradient_norm.add(next.gradient_norm);
  step_ns.add(next.step_ns);
  learning_rate = next.learning_rate;
  loss_scale = next.loss_scale;
  total_ns += next.total_ns;
  forward_backward_ns += next.forward_backward_ns;
  update_ns += next.update_ns;
  keeping_ns += next.keeping_ns;
  moved = moved + next.moved;
}

StepSeries::StepSeries(size_t room) : room_(room) {
  TERRACE_ASSERT(room > 0 && room % 2 == 0, fmt::format("room for {} points", room));
  points_.reserve(room);
}

void StepSeries::add(const StepReport& step) {
  if (!points_.empty() && points_.back().count < steps_per_point_) {
    points_.back().add(step);
    return;
  }
  if (points_.size() == room_) {
    merge_neighbours();
    add(step);
    return;
  }
  points_.emplace_back().add(step);
}

// All points are full then, and as many as can be paired.
void StepSeries::merge_neighbours() {
  for (size_t i = 0; i < room_ / 2; ++i) {
    StepPoint pair = points_[2 * i];
    pair.add(points_[2 * i + 1]);
    points_[i] = pair;
  }
  points_.resize(room_ / 2);
  steps_per_point_ *= 2;
}

}  // namespace terrace
