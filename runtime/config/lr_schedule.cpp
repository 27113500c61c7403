#include <terrace/runtime/config/lr_schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// log(1) is no divisor.
constexpr uint64_t kLeastWarmupSteps = 2;
// What DeepSpeed's OneCycle sets beside the momentum.
constexpr double kCycleBeta2 = 0.99;

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
    case LrScheduleKind::linear:
      return "linear";
    case LrScheduleKind::warmup:
      return "WarmupLR";
    case LrScheduleKind::warmup_decay:
      return "WarmupDecayLR";
    case LrScheduleKind::warmup_cosine:
      return "WarmupCosineLR";
    case LrScheduleKind::one_cycle:
      return "OneCycle";
    case LrScheduleKind::range_test:
      return "LRRangeTest";
  }
  return "?";
}

bool needs_total(LrScheduleKind kind) {
  return kind == LrScheduleKind::linear || kind == LrScheduleKind::warmup_decay ||
         kind == LrScheduleKind::warmup_cosine;
}

LrSchedule::LrSchedule(LrScheduleOptions options) : options_(std::move(options)) {
  const OneCycleOptions& cycle = options_.cycle;
  TERRACE_ASSERT(!options_.base_lr.empty() && !options_.minimum_lr.empty(),
                 "a schedule without a learning rate");
  TERRACE_ASSERT(!cycle.minimum_momentum.empty() && !cycle.maximum_momentum.empty(),
                 "a schedule without a momentum");
  TERRACE_ASSERT(!needs_total(options_.kind) || options_.total_step_count.has_value(),
                 "a decaying schedule without its number of steps");
  TERRACE_ASSERT(cycle.first_step_count > 0, "a cycle without a first half");
  TERRACE_ASSERT(options_.range_test.step_size > 0, "a range test whose steps have no size");
  options_.warmup_step_count = std::max(options_.warmup_step_count, kLeastWarmupSteps);
  inverse_log_warmup_ = 1.0 / std::log(static_cast<double>(options_.warmup_step_count));
  total_ = static_cast<double>(options_.total_step_count.value_or(0));
  first_half_ = static_cast<double>(cycle.first_step_count);
  second_half_ = static_cast<double>(cycle.second_step_count.value_or(cycle.first_step_count));
}

double LrSchedule::warmup_factor(double iteration) const {
  if (iteration < 0) return 0;
  if (options_.warmup_shape == WarmupShape::linear)
    return iteration / static_cast<double>(options_.warmup_step_count);
  return inverse_log_warmup_ * std::log(iteration + 1.0);
}

double LrSchedule::decay_factor(double iteration) const {
  if (options_.kind == LrScheduleKind::warmup) return 1.0;
  const double warmup = static_cast<double>(options_.warmup_step_count);
  return std::max(0.0, (total_ - iteration) / std::max(1.0, total_ - warmup));
}

double LrSchedule::cosine_ratio(double iteration) const {
  if (iteration < 0) return 0;
  const double warmup = static_cast<double>(options_.warmup_step_count);
  if (iteration < warmup) {
    const double delta = 1.0 - options_.warmup_min_ratio;
    return options_.warmup_min_ratio + warmup_factor(iteration) * delta;
  }
  const double progress = std::min(1.0, (iteration - warmup + 1) / std::max(1.0, total_ - warmup));
  const double ratio = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return std::max(0.0, options_.cos_min_ratio + (1.0 - options_.cos_min_ratio) * ratio);
}

double LrSchedule::range_factor(double iteration) const {
  const RangeTestOptions& test = options_.range_test;
  const double interval = (iteration + 1.0) / static_cast<double>(test.step_size);
  return 1.0 + test.step_rate * (test.staircase ? std::floor(interval) : interval);
}

// How far the cycle has come from its minimum to its maximum, from 0 to 1. Stairs are counted in whole
// steps: the continuous scale may lie a rounding below a stair.
double LrSchedule::cycle_scale(double iteration) const {
  const OneCycleOptions& cycle = options_.cycle;
  const double done = iteration + 1.0;
  const double size = first_half_ + second_half_;
  const double first_part = first_half_ / size;
  const double x = 1.0 + done / size - std::floor(1.0 + done / size);
  const bool rises = x <= first_part;
  const uint64_t stairs =
      rises ? cycle.first_stair_count : cycle.second_stair_count.value_or(cycle.first_stair_count);
  if (stairs == 0) return rises ? x / first_part : (x - 1.0) / (first_part - 1.0);
  const double step = std::fmod(done, size);
  const double count = static_cast<double>(stairs);
  const double position =
      step <= first_half_ ? step * count / first_half_ : (size - step) * count / second_half_;
  return std::floor(position) / count;
}

double LrSchedule::maximum_lr(uint32_t group, double base_lr) const {
  return options_.maximum_lr.empty() ? base_lr : of_group(options_.maximum_lr, group);
}

double LrSchedule::cycle_lr(double iteration, uint32_t group, double base_lr) const {
  const OneCycleOptions& cycle = options_.cycle;
  const double minimum = of_group(options_.minimum_lr, group);
  const double size = first_half_ + second_half_;
  if (iteration < size) {
    return minimum + (maximum_lr(group, base_lr) - minimum) * cycle_scale(iteration);
  }
  if (cycle.decay_step_size == 0 || cycle.decay_lr_rate == 0) return minimum;
  const double interval = (iteration - size + 1.0) / static_cast<double>(cycle.decay_step_size);
  return minimum / (1.0 + cycle.decay_lr_rate * interval);
}

double LrSchedule::cycle_momentum(double iteration, uint32_t group) const {
  const OneCycleOptions& cycle = options_.cycle;
  const double minimum = of_group(cycle.minimum_momentum, group);
  const double maximum = of_group(cycle.maximum_momentum, group);
  if (iteration < 0) return minimum;  // as the constructor has it, though the rate is at its minimum too
  const double size = first_half_ + second_half_;
  if (iteration < size) return maximum - (maximum - minimum) * cycle_scale(iteration);
  if (cycle.decay_step_size == 0 || cycle.decay_momentum_rate == 0) return maximum;
  const double interval = (iteration - size + 1.0) / static_cast<double>(cycle.decay_step_size);
  return maximum * (1.0 + cycle.decay_momentum_rate * interval);
}

double LrSchedule::lr_at(double iteration, uint32_t group, double base_lr) const {
  switch (options_.kind) {
    case LrScheduleKind::constant:
      return base_lr;
    case LrScheduleKind::linear:
      return base_lr * std::max(0.0, 1.0 - (iteration + 1.0) / total_);
    case LrScheduleKind::warmup:
    case LrScheduleKind::warmup_decay: {
      const bool rises = iteration < static_cast<double>(options_.warmup_step_count);
      const double minimum = of_group(options_.minimum_lr, group);
      const double factor = rises ? warmup_factor(iteration) : decay_factor(iteration);
      return minimum + (maximum_lr(group, base_lr) - minimum) * factor;
    }
    case LrScheduleKind::warmup_cosine:
      return base_lr * cosine_ratio(iteration);
    case LrScheduleKind::one_cycle:
      return cycle_lr(iteration, group, base_lr);
    case LrScheduleKind::range_test:
      return of_group(options_.minimum_lr, group) * range_factor(iteration);
  }
  return 0;
}

uint32_t LrSchedule::group_count() const {
  size_t most = 1;
  for (const auto* list : {&options_.base_lr, &options_.minimum_lr, &options_.maximum_lr,
                           &options_.cycle.minimum_momentum, &options_.cycle.maximum_momentum})
    most = std::max(most, list->size());
  return most == 1 ? 0 : static_cast<uint32_t>(most);
}

ScheduledValues LrSchedule::at(uint64_t update, uint32_t group) const {
  return at(update, group, of_group(options_.base_lr, group));
}

ScheduledValues LrSchedule::at(uint64_t update, uint32_t group, double base_lr) const {
  const double iteration = static_cast<double>(update) - 1.0;
  ScheduledValues values{lr_at(iteration, group, base_lr), std::nullopt, std::nullopt};
  if (options_.kind == LrScheduleKind::one_cycle && options_.cycle.cycle_momentum) {
    values.beta1 = cycle_momentum(iteration, group);
    values.beta2 = kCycleBeta2;
  }
  return values;
}

std::optional<uint64_t> LrSchedule::first_update_without_momentum() const {
  const OneCycleOptions& cycle = options_.cycle;
  const bool decays = options_.kind == LrScheduleKind::one_cycle && cycle.cycle_momentum &&
                      cycle.decay_step_size > 0 && cycle.decay_momentum_rate > 0;
  if (!decays) return std::nullopt;
  const double largest = *std::max_element(cycle.maximum_momentum.begin(), cycle.maximum_momentum.end());
  if (largest <= 0) return std::nullopt;
  // maximum * (1 + rate * interval) >= 1 from this many steps after the cycle on
  const double steps = std::ceil((1.0 / largest - 1.0) / cycle.decay_momentum_rate *
                                 static_cast<double>(cycle.decay_step_size));
  const double update = first_half_ + second_half_ + std::max(1.0, steps);
  if (!(update < 0x1p63)) return std::nullopt;
  return static_cast<uint64_t>(update);
}

}  // namespace terrace
