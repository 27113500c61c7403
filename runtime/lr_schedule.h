// Learning-rate schedules with DeepSpeed's arithmetic, as pure functions of the step: nothing to save,
// nothing to restore. They must never look at the clock, the loss or how often they were asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace terrace {

enum class LrScheduleKind : uint8_t {
  constant,      // the optimizer's learning rate, always
  warmup,        // WarmupLR: from the minimum to the maximum, then constant
  warmup_decay,  // WarmupDecayLR: the same, then linearly down to zero at the last step
};
std::string_view name_of(LrScheduleKind kind);

enum class WarmupShape : uint8_t { log, linear };
std::string_view name_of(WarmupShape shape);

struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::constant;
  // One entry for all parameter groups, or one for each group. Constant schedules use the maximum only.
  std::vector<double> minimum_lr = {0.0};
  std::vector<double> maximum_lr = {1e-3};
  uint64_t warmup_step_count = 1000;  // fewer than 2 count as 2
  WarmupShape warmup_shape = WarmupShape::log;
  std::optional<uint64_t> total_step_count;  // warmup_decay; nullopt: as many as the run has, to be filled in
};

class LrSchedule {
 public:
  // A warmup_decay schedule needs its total_step_count; the lists must not be empty.
  explicit LrSchedule(LrScheduleOptions options);

  // The rate of parameter group `group` in scheduler iteration `step`, which counts from 0. With W warm-up
  // steps, T steps in all, and factor f, the rate is minimum + (maximum - minimum) * f, where f is
  //   step <  W, log:     1 / log(W) * log(step + 1)
  //   step <  W, linear:  step / W
  //   step >= W:          1 (warmup), or max(0, (T - step) / max(1, T - W)) (warmup_decay)
  // DeepSpeed steps its scheduler after its optimizer, so that its update number k (from 0) runs with
  // lr_at(k == 0 ? 0 : k - 1).
  double lr_at(uint64_t step, uint32_t group = 0) const;

  const LrScheduleOptions& options() const { return options_; }

 private:
  double factor_at(uint64_t step) const;

  LrScheduleOptions options_;
  double inverse_log_warmup_;
};

}  // namespace terrace
