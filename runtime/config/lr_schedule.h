// Learning-rate schedules with DeepSpeed's arithmetic (0.19.8). They are pure functions of the number of
// updates, with nothing to save or restore: they must never look at the clock, the loss or the number of
// calls.
//
// DeepSpeed steps its scheduler after its optimizer: update k (from 0) runs with the rate that the scheduler
// set in iteration i = k - 1. The first update runs with the rate that its constructor sets, called i = -1
// here.
// With W warm-up steps, T steps in all and the warm-up factor
//   w(i) = 0 for i < 0, log(i + 1) / log(W) (log) or i / W (linear) for i < W
// the rates are
//   constant       base
//   linear         base * max(0, 1 - (i + 1) / T), as Hugging Face's trainer has it without a warm-up
//   WarmupLR       minimum + (maximum - minimum) * (i < W ? w(i) : 1)
//   WarmupDecayLR  minimum + (maximum - minimum) * (i < W ? w(i) : max(0, (T - i) / max(1, T - W)))
//   WarmupCosineLR base * (i < 0 ? 0 : i < W ? r + (1 - r) * w(i)
//                                    : c + (1 - c) * (1 + cos(pi * min(1, (i - W + 1) / max(1, T - W)))) / 2)
//                  with r = warmup_min_ratio and c = cos_min_ratio
//   LRRangeTest    minimum * (1 + step_rate * n), n = (i + 1) / step_size, rounded down for a staircase
//   OneCycle       up from minimum to maximum in the first half of the cycle, down in the second (momentum:
//                  the other way), then a decay that divides by 1 + rate * steps / decay_step_size
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace terrace {

enum class LrScheduleKind : uint8_t {
  constant,       // the optimizer's learning rate, always
  linear,         // the optimizer's learning rate, linearly down to zero after the last step
  warmup,         // WarmupLR: from the minimum to the maximum, then constant
  warmup_decay,   // WarmupDecayLR: as warmup, then linearly down to zero at the last step
  warmup_cosine,  // WarmupCosineLR: as warmup in parts of the optimizer's rate, then down along a cosine
  one_cycle,      // OneCycle: up, down, and a slow decay
  range_test,     // LRRangeTest: rising without end
};
std::string_view name_of(LrScheduleKind kind);
// True if the schedule reaches its end with the last step, and so has to know how many there are.
bool needs_total(LrScheduleKind kind);

enum class WarmupShape : uint8_t { log, linear };

struct OneCycleOptions {
  double decay_lr_rate = 0;
  uint64_t first_step_count = 2000;            // steps of the rising half, at least 1
  std::optional<uint64_t> second_step_count;   // steps of the falling half; nullopt: the rising half's
  uint64_t first_stair_count = 0;              // 0: no stairs
  std::optional<uint64_t> second_stair_count;  // nullopt: as many as first_stair_count
  uint64_t decay_step_size = 0;                // 0: no decay
  bool cycle_momentum = true;
  std::vector<double> minimum_momentum = {0.8};
  std::vector<double> maximum_momentum = {0.9};
  double decay_momentum_rate = 0;
};

struct RangeTestOptions {
  uint64_t step_size = 2000;  // at least 1
  double step_rate = 1.0;
  bool staircase = false;
};

// Every list has one entry for all parameter groups, or one for each.
struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::constant;
  std::vector<double> base_lr = {1e-3};    // the optimizer's own rates
  std::vector<double> minimum_lr = {0.0};  // warmup_min_lr, cycle_min_lr, lr_range_test_min_lr
  std::vector<double> maximum_lr;          // warmup_max_lr, cycle_max_lr; empty: base_lr
  uint64_t warmup_step_count = 1000;       // fewer than 2 count as 2
  WarmupShape warmup_shape = WarmupShape::log;
  std::optional<uint64_t> total_step_count;  // nullopt: the run's steps, to be filled in
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  OneCycleOptions cycle;
  RangeTestOptions range_test;
};

// The values that a schedule sets for one parameter group in one update.
struct ScheduledValues {
  double lr = 0;
  // Adam's betas where OneCycle cycles the momentum. DeepSpeed then sets the second one to 0.99, whatever the
  // optimizer's is.
  std::optional<double> beta1;
  std::optional<double> beta2;
};

class LrSchedule {
 public:
  // Decaying schedules need their total_step_count; the lists must not be empty.
  explicit LrSchedule(LrScheduleOptions options);

  // Returns the values for update number `update` (from 0). Updates that fp16 skips do not count, as in
  // DeepSpeed. `base_lr` is the group's own rate, instead of its entry in the options.
  ScheduledValues at(uint64_t update, uint32_t group = 0) const;
  ScheduledValues at(uint64_t update, uint32_t group, double base_lr) const;
  // Returns how many groups its lists have: every list of several has an entry for each. 0: any number.
  uint32_t group_count() const;

  // Returns the first update whose momentum is 1 or more, which a positive decay_mom_rate reaches in the end.
  // No Adam update can be computed from there on.
  std::optional<uint64_t> first_update_without_momentum() const;

  const LrScheduleOptions& options() const { return options_; }

 private:
  double warmup_factor(double iteration) const;
  double decay_factor(double iteration) const;
  double cosine_ratio(double iteration) const;
  double range_factor(double iteration) const;
  double cycle_scale(double iteration) const;
  double maximum_lr(uint32_t group, double base_lr) const;
  double cycle_lr(double iteration, uint32_t group, double base_lr) const;
  double cycle_momentum(double iteration, uint32_t group) const;
  double lr_at(double iteration, uint32_t group, double base_lr) const;

  LrScheduleOptions options_;
  double inverse_log_warmup_;
  double total_;       // steps in all
  double first_half_;  // steps of the cycle's first half
  double second_half_;
};

}  // namespace terrace
