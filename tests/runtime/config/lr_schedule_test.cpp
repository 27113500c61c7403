#include <gtest/gtest.h>

#include <cmath>

#include <terrace/runtime/config/lr_schedule.h>

namespace terrace::lr_schedule_test {
namespace {

LrScheduleOptions warmup(uint64_t steps, WarmupShape shape) {
  LrScheduleOptions options;
  options.kind = LrScheduleKind::warmup;
  options.minimum_lr = {0.0};
  options.maximum_lr = {1e-3};
  options.warmup_step_count = steps;
  options.warmup_shape = shape;
  return options;
}

// Of scheduler iteration `step`: update k runs with iteration k - 1.
double lr_at(const LrSchedule& schedule, uint64_t step, uint32_t group = 0) {
  return schedule.at(step + 1, group).lr;
}

TEST(LrSchedule, StaysAtTheMaximumWhenConstant) {
  const LrSchedule schedule(LrScheduleOptions{});
  EXPECT_EQ(lr_at(schedule, 0), 1e-3);
  EXPECT_EQ(lr_at(schedule, 1'000'000'000'000), 1e-3);
}

// transformers' get_linear_schedule_with_warmup without a warm-up: the first update has the whole rate.
TEST(LrSchedule, FallsInAStraightLineFromTheFirstUpdateOn) {
  LrScheduleOptions options;
  options.kind = LrScheduleKind::linear;
  options.base_lr = {4e-5};
  options.total_step_count = 4;
  const LrSchedule schedule(options);
  EXPECT_EQ(schedule.at(0).lr, 4e-5);
  EXPECT_DOUBLE_EQ(schedule.at(1).lr, 3e-5);
  EXPECT_DOUBLE_EQ(schedule.at(3).lr, 1e-5);
  EXPECT_EQ(schedule.at(4).lr, 0.0);
  EXPECT_EQ(schedule.at(9).lr, 0.0);
}

TEST(LrSchedule, RisesWithTheLogarithmOfTheStep) {
  const LrSchedule schedule(warmup(1000, WarmupShape::log));
  EXPECT_EQ(lr_at(schedule, 0), 0.0);
  EXPECT_EQ(lr_at(schedule, 9), 1e-3 * (1.0 / std::log(1000.0) * std::log(10.0)));
  EXPECT_NEAR(lr_at(schedule, 99), 1e-3 * 2 / 3, 1e-12);  // log(100) / log(1000)
  EXPECT_NEAR(lr_at(schedule, 999), 1e-3, 1e-12);
  EXPECT_EQ(lr_at(schedule, 1000), 1e-3);
  EXPECT_EQ(lr_at(schedule, 100'000), 1e-3);
}

TEST(LrSchedule, RisesInAStraightLine) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.minimum_lr = {1e-4};
  const LrSchedule schedule(options);
  EXPECT_EQ(lr_at(schedule, 0), 1e-4);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 5), 5.5e-4);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 9), 1e-4 + 9e-4 * 0.9);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 10), 1e-3);
}

TEST(LrSchedule, WarmsUpForTwoStepsAtLeast) {
  for (const uint64_t steps : {0, 1, 2}) {
    const LrSchedule schedule(warmup(steps, WarmupShape::log));
    EXPECT_EQ(schedule.options().warmup_step_count, 2u);
    EXPECT_EQ(lr_at(schedule, 0), 0.0);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1), 1e-3);
    EXPECT_EQ(lr_at(schedule, 2), 1e-3);
  }
}

TEST(LrSchedule, DecaysToZeroAtTheLastStepAndStaysThere) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.kind = LrScheduleKind::warmup_decay;
  options.total_step_count = 110;
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 5), 5e-4);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 10), 1e-3);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 60), 5e-4);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 109), 1e-5);
  EXPECT_EQ(lr_at(schedule, 110), 0.0);
  EXPECT_EQ(lr_at(schedule, 100'000), 0.0);
}

TEST(LrSchedule, DecaysAtOnceWhenTheRunEndsBeforeTheWarmup) {
  LrScheduleOptions options = warmup(100, WarmupShape::linear);
  options.kind = LrScheduleKind::warmup_decay;
  options.total_step_count = 50;
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 49), 4.9e-4);
  EXPECT_EQ(lr_at(schedule, 100), 0.0);
}

TEST(LrSchedule, GivesEveryParameterGroupItsOwnRates) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.minimum_lr = {0.0};
  options.maximum_lr = {1.0, 2.0};
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 5, 0), 0.5);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 5, 1), 1.0);
  EXPECT_DEATH(lr_at(schedule, 5, 2), "parameter group 2 has no learning rate");
}

TEST(LrSchedule, IsAFunctionOfTheStepAlone) {
  const LrSchedule schedule(warmup(100, WarmupShape::log));
  const double first = lr_at(schedule, 50);
  lr_at(schedule, 3);
  lr_at(schedule, 7'000);
  EXPECT_EQ(lr_at(schedule, 50), first);
}

TEST(LrSchedule, SaysWhereItsMomentumReachesOne) {
  LrScheduleOptions options;
  options.kind = LrScheduleKind::one_cycle;
  options.cycle.first_step_count = 4;
  EXPECT_FALSE(LrSchedule(options).first_update_without_momentum().has_value());
  options.cycle.decay_momentum_rate = 0.01;
  EXPECT_FALSE(LrSchedule(options).first_update_without_momentum().has_value());
  options.cycle.decay_step_size = 3;
  const LrSchedule schedule(options);
  const uint64_t update = schedule.first_update_without_momentum().value();
  EXPECT_LT(schedule.at(update - 1).beta1, 1.0);
  EXPECT_GE(schedule.at(update).beta1, 1.0);
}

TEST(LrSchedule, NeedsTheNumberOfStepsToDecay) {
  LrScheduleOptions options;
  options.kind = LrScheduleKind::warmup_decay;
  EXPECT_DEATH(LrSchedule{options}, "without its number of steps");
}

}  // namespace
}  // namespace terrace::lr_schedule_test
