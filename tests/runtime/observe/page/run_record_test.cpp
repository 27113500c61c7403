// The parts of a run's record: bounded, and exact in their sums.
#include <terrace/runtime/observe/page/run_record.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

#include "sample_steps.h"

namespace terrace::run_record_test {
namespace {

using ::testing::ElementsAre;
using testing::sample_step;

TEST(StepSeries, HasAPointForEachStepWhileThereIsRoom) {
  StepSeries series(8);
  for (uint64_t step = 5; step < 13; ++step) series.add(sample_step(step));
  EXPECT_EQ(series.steps_per_point(), 1u);
  ASSERT_EQ(series.points().size(), 8u);
  EXPECT_EQ(series.points()[3].first_step, 8u);
  EXPECT_EQ(series.points()[3].loss.mean(), sample_step(8).loss);
  EXPECT_EQ(series.points()[3].moved.time, sample_step(8).moved.time);
}

// Against all steps of the run, kept: whatever was merged, points cover the steps in order and sums are
// exact.
TEST(StepSeries, MergesNeighboursAndLosesNoStep) {
  for (const uint64_t steps : {1, 7, 8, 9, 16, 17, 63, 64, 65, 1000}) {
    SCOPED_TRACE(steps);
    StepSeries series(8);
    for (uint64_t step = 1; step <= steps; ++step) series.add(sample_step(step));
    ASSERT_LE(series.points().size(), 8u);
    EXPECT_TRUE(steps < 8 || series.points().size() > 4);
    uint64_t step = 1;
    for (const StepPoint& point : series.points()) {
      EXPECT_EQ(point.first_step, step);
      const bool is_last = &point == &series.points().back();
      EXPECT_TRUE(point.count == series.steps_per_point() || is_last);
      OffloadCounters moved;
      ValueRange loss;
      for (uint64_t i = 0; i < point.count; ++i, ++step) {
        moved = moved + sample_step(step).moved;
        loss.add(sample_step(step).loss);
      }
      EXPECT_EQ(point.moved.h2d_bytes, moved.h2d_bytes);
      EXPECT_EQ(point.moved.time, moved.time);
      EXPECT_EQ(point.total_ns, moved.time.total_ns());
      EXPECT_EQ(point.forward_backward_ns + point.update_ns + point.keeping_ns, point.total_ns);
      EXPECT_EQ(point.loss.least, loss.least);
      EXPECT_EQ(point.loss.most, loss.most);
      EXPECT_NEAR(point.loss.mean(), loss.mean(), 1e-12);
    }
    EXPECT_EQ(step, steps + 1);
  }
}

TEST(StepSeries, LeavesWhatIsNotFiniteOutOfMeansAndCountsSkippedSteps) {
  StepSeries series(2);
  for (uint64_t step = 1; step <= 4; ++step) {
    StepReport report = sample_step(step);
    report.skipped = step % 2 == 0;
    if (report.skipped) report.loss = report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    series.add(report);
  }
  ASSERT_EQ(series.points().size(), 2u);
  EXPECT_EQ(series.points()[0].skipped, 1u);
  EXPECT_EQ(series.points()[0].loss.mean(), sample_step(1).loss);
  EXPECT_EQ(series.points()[1].gradient_norm.count, 1u);
}

TEST(Thinned, KeepsEverySecondItemOnceItIsFull) {
  Thinned<int> four(4);
  for (int i = 0; i < 4; ++i) four.add(i);
  EXPECT_THAT(four.items(), ElementsAre(0, 1, 2, 3));
  four.add(4);
  EXPECT_THAT(four.items(), ElementsAre(0, 2, 4));
  for (int i = 5; i < 8; ++i) four.add(i);
  EXPECT_THAT(four.items(), ElementsAre(0, 2, 4, 6));
  four.add(8);
  EXPECT_THAT(four.items(), ElementsAre(0, 4, 8));
  EXPECT_EQ(four.count(), 9u);
  EXPECT_EQ(four.stride(), 4u);
  Thinned<int> three(3);
  for (int i = 0; i < 100; ++i) {
    three.add(i);
    ASSERT_LE(three.items().size(), 3u);
    for (size_t k = 0; k < three.items().size(); ++k)
      ASSERT_EQ(three.items()[k], static_cast<int>(k * three.stride()));
    ASSERT_GT((three.items().size() + 1) * three.stride(), static_cast<uint64_t>(i)) << "the end is missing";
  }
}

TEST(LogRecord, HasWarningsAndErrorsWithTheirStepAndCountsWhatItHasNoRoomFor) {
  LogRecord log(2);
  log.info("passes by");
  log.warning("first");
  log.set_completed_steps(7);
  log.error("second");
  log.warning("third");
  const std::vector<LoggedLine> lines = log.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "first");
  EXPECT_EQ(lines[0].completed_steps, 0u);
  EXPECT_EQ(lines[1].level, LogLevel::error);
  EXPECT_EQ(lines[1].completed_steps, 7u);
  EXPECT_EQ(log.left_out(), 1u);
}

TEST(RunRecord, AddsUpWhatTheLastStepLeftApartFromTheSteps) {
  RunRecord record;
  record.step(sample_step(1));
  record.step(sample_step(2));
  FinishedUpdate rest;
  rest.ns = 5;
  rest.moved.h2d_bytes = 3;
  record.finished(rest);
  record.finished(rest);
  record.log().warning("after two steps");
  EXPECT_EQ(record.log().lines().front().completed_steps, 2u);
  EXPECT_EQ(record.all().count, 2u);
  EXPECT_EQ(record.all().moved.h2d_bytes, sample_step(1).moved.h2d_bytes + sample_step(2).moved.h2d_bytes);
  EXPECT_EQ(record.rest().ns, 10u);
  EXPECT_EQ(record.rest().moved.h2d_bytes, 6u);
  EXPECT_EQ(record.last_step()->step, 2u);
  EXPECT_EQ(record.state(), RunState::running);
}

}  // namespace
}  // namespace terrace::run_record_test
