#include <gtest/gtest.h>

#include <cmath>

#include <terrace/runtime/lr_schedule.h>

namespace terrace {
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

TEST(LrSchedule, StaysAtTheMaximumWhenConstant) {
  const LrSchedule schedule(LrScheduleOptions{});
  EXPECT_EQ(schedule.lr_at(0), 1e-3);
  EXPECT_EQ(schedule.lr_at(1'000'000'000'000), 1e-3);
}

TEST(LrSchedule, RisesWithTheLogarithmOfTheStep) {
  const LrSchedule schedule(warmup(1000, WarmupShape::log));
  EXPECT_EQ(schedule.lr_at(0), 0.0);
  EXPECT_EQ(schedule.lr_at(9), 1e-3 * (1.0 / std::log(1000.0) * std::log(10.0)));
  EXPECT_NEAR(schedule.lr_at(99), 1e-3 * 2 / 3, 1e-12);  // log(100) / log(1000)
  EXPECT_NEAR(schedule.lr_at(999), 1e-3, 1e-12);
  EXPECT_EQ(schedule.lr_at(1000), 1e-3);
  EXPECT_EQ(schedule.lr_at(100'000), 1e-3);
}

TEST(LrSchedule, RisesInAStraightLine) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.minimum_lr = {1e-4};
  const LrSchedule schedule(options);
  EXPECT_EQ(schedule.lr_at(0), 1e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(5), 5.5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(9), 1e-4 + 9e-4 * 0.9);
  EXPECT_DOUBLE_EQ(schedule.lr_at(10), 1e-3);
}

TEST(LrSchedule, WarmsUpForTwoStepsAtLeast) {
  for (const uint64_t steps : {0, 1, 2}) {
    const LrSchedule schedule(warmup(steps, WarmupShape::log));
    EXPECT_EQ(schedule.options().warmup_step_count, 2u);
    EXPECT_EQ(schedule.lr_at(0), 0.0);
    EXPECT_DOUBLE_EQ(schedule.lr_at(1), 1e-3);
    EXPECT_EQ(schedule.lr_at(2), 1e-3);
  }
}

TEST(LrSchedule, DecaysToZeroAtTheLastStepAndStaysThere) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.kind = LrScheduleKind::warmup_decay;
  options.total_step_count = 110;
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(schedule.lr_at(5), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(10), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.lr_at(60), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(109), 1e-5);
  EXPECT_EQ(schedule.lr_at(110), 0.0);
  EXPECT_EQ(schedule.lr_at(100'000), 0.0);
}

TEST(LrSchedule, DecaysAtOnceWhenTheRunEndsBeforeTheWarmup) {
  LrScheduleOptions options = warmup(100, WarmupShape::linear);
  options.kind = LrScheduleKind::warmup_decay;
  options.total_step_count = 50;
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(schedule.lr_at(49), 4.9e-4);
  EXPECT_EQ(schedule.lr_at(100), 0.0);
}

TEST(LrSchedule, GivesEveryParameterGroupItsOwnRates) {
  LrScheduleOptions options = warmup(10, WarmupShape::linear);
  options.minimum_lr = {0.0};
  options.maximum_lr = {1.0, 2.0};
  const LrSchedule schedule(options);
  EXPECT_DOUBLE_EQ(schedule.lr_at(5, 0), 0.5);
  EXPECT_DOUBLE_EQ(schedule.lr_at(5, 1), 1.0);
  EXPECT_DEATH(schedule.lr_at(5, 2), "parameter group 2 has no learning rate");
}

TEST(LrSchedule, IsAFunctionOfTheStepAlone) {
  const LrSchedule schedule(warmup(100, WarmupShape::log));
  const double first = schedule.lr_at(50);
  schedule.lr_at(3);
  schedule.lr_at(7'000);
  EXPECT_EQ(schedule.lr_at(50), first);
}

TEST(LrSchedule, NeedsTheNumberOfStepsToDecay) {
  LrScheduleOptions options;
  options.kind = LrScheduleKind::warmup_decay;
  EXPECT_DEATH(LrSchedule{options}, "without its number of steps");
}

}  // namespace
}  // namespace terrace
