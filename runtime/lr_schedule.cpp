#include <terrace/runtime/lr_schedule.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// log(1) is no divisor.
constexpr uint64_t kLeastWarmupSteps = 2;

double of_group(const std::vector<double>& values, uint32_t group) {
  if (values.size() == 1) return values[0];
  TERRACE_ASSERT(group < values.size(), "parameter group " + std::to_string(group) +
                                            " has no learning rate among " + std::to_string(values.size()));
  return values[group];
}

}  // namespace

std::string_view name_of(LrScheduleKind kind) {
  switch (kind) {
    case LrScheduleKind::constant:
      return "constant";
    case LrScheduleKind::warmup:
      return "WarmupLR";
    case LrScheduleKind::warmup_decay:
      return "WarmupDecayLR";
  }
  return "?";
}

std::string_view name_of(WarmupShape shape) {
  return shape == WarmupShape::log ? "log" : "linear";
}

LrSchedule::LrSchedule(LrScheduleOptions options) : options_(std::move(options)) {
  TERRACE_ASSERT(!options_.minimum_lr.empty() && !options_.maximum_lr.empty(),
                 "a schedule without a learning rate");
  TERRACE_ASSERT(options_.kind != LrScheduleKind::warmup_decay || options_.total_step_count.has_value(),
                 "a decaying schedule without its number of steps");
  options_.warmup_step_count = std::max(options_.warmup_step_count, kLeastWarmupSteps);
  inverse_log_warmup_ = 1.0 / std::log(static_cast<double>(options_.warmup_step_count));
}

double LrSchedule::factor_at(uint64_t step) const {
  const uint64_t warmup = options_.warmup_step_count;
  if (step < warmup) {
    if (options_.warmup_shape == WarmupShape::linear)
      return static_cast<double>(step) / static_cast<double>(warmup);
    return inverse_log_warmup_ * std::log(static_cast<double>(step) + 1.0);
  }
  if (options_.kind == LrScheduleKind::warmup) return 1.0;
  const double total = static_cast<double>(*options_.total_step_count);
  const double left = total - static_cast<double>(step);
  return std::max(0.0, left / std::max(1.0, total - static_cast<double>(warmup)));
}

double LrSchedule::lr_at(uint64_t step, uint32_t group) const {
  const double maximum = of_group(options_.maximum_lr, group);
  if (options_.kind == LrScheduleKind::constant) return maximum;
  const double minimum = of_group(options_.minimum_lr, group);
  return minimum + (maximum - minimum) * factor_at(step);
}

}  // namespace terrace
