// The parts of a run's record: bounded, and exact in their sums.
#include <terrace/runtime/observe/page/run_record.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include <terrace/offload/watch/counter_table.h>

#include "sample_steps.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::run_record_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::sample_step;
using testing::SampleRun;

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
  MemoryLog other;
  LogRecord log(&other, 2);
  log.info("passes by");
  log.warning("first");
  log.set_completed_steps(7);
  log.error("second");
  log.warning("third");
  EXPECT_EQ(other.lines().size(), 4u);
  const std::vector<LoggedLine> lines = log.take();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].text, "first");
  EXPECT_EQ(lines[0].completed_steps, 0u);
  EXPECT_EQ(lines[1].level, LogLevel::error);
  EXPECT_EQ(lines[1].completed_steps, 7u);
  EXPECT_EQ(lines[2].text, "1 more lines were lost");
  EXPECT_TRUE(log.take().empty());
}

TEST(RunRecord, AddsUpWhatTheLastStepLeftApartFromTheSteps) {
  SampleRun run;
  run.log.step_done(sample_step(1));
  run.said.warning("after one step");
  run.log.step_done(sample_step(2));
  FinishedUpdate rest;
  rest.ns = 5;
  rest.moved.h2d_bytes = 3;
  run.log.update_finished(rest);
  run.log.update_finished(rest);
  const RunRecord& record = run.record;
  ASSERT_EQ(record.said().size(), 1u);
  EXPECT_EQ(record.said().front().completed_steps, 1u);
  EXPECT_EQ(record.all().count, 2u);
  EXPECT_EQ(record.all().moved.h2d_bytes, sample_step(1).moved.h2d_bytes + sample_step(2).moved.h2d_bytes);
  EXPECT_EQ(record.rest().ns, 10u);
  EXPECT_EQ(record.rest().moved.h2d_bytes, 6u);
  EXPECT_EQ(record.last_step()->step, 2u);
  EXPECT_EQ(record.state(), RunState::running);
}

// Every counter that a log has, every time and every number of a step: none is lost or rounded on its way
// through the text.
TEST(RunRecord, HasEachStepAsTheRunTold) {
  SampleRun run;
  StepReport told = sample_step(7);
  told.skipped = true;
  told.update_mode = UpdateMode::next_forward;
  told.loss_scale = 65536;
  uint64_t number = 1'000'000'000'000'003;
  for (const CounterEntry& counter : kCounters)
    if (!counter.key.empty()) told.moved.*counter.value = number++;
  run.log.step_done(told);
  const StepReport& read = *run.record.last_step();
  EXPECT_EQ(read.loss, told.loss);
  EXPECT_EQ(read.learning_rate, told.learning_rate);
  EXPECT_EQ(read.gradient_norm, told.gradient_norm);
  EXPECT_EQ(read.skipped, told.skipped);
  EXPECT_EQ(read.update_mode, told.update_mode);
  EXPECT_EQ(read.loss_scale, told.loss_scale);
  EXPECT_EQ(read.tokens, told.tokens);
  EXPECT_EQ(read.total_ns, told.total_ns);
  EXPECT_EQ(read.forward_backward_ns, told.forward_backward_ns);
  EXPECT_EQ(read.forward_ns, told.forward_ns);
  EXPECT_EQ(read.update_ns, told.update_ns);
  EXPECT_EQ(read.keeping_ns, told.keeping_ns);
  EXPECT_EQ(read.moved.time, told.moved.time);
  for (const CounterEntry& counter : kCounters) {
    if (counter.key.empty()) continue;
    EXPECT_EQ(read.moved.*counter.value, told.moved.*counter.value) << counter.key;
  }
}

TEST(RunRecord, HasTheHeaderTheMemoryAndTheEndAsTheRunTold) {
  SampleRun run;
  RunHeader header;
  header.version = "1.2";
  header.model = "a \"model\"";
  header.parameter_count = 12;
  header.planned_steps = 9;
  header.resumed_at_step = 4;
  header.commit_step = 4;
  header.unigram_loss = 3.25;
  header.started_at = "2026-01-31T12:00:00Z";
  header.facts = {{"batch", "8"}, {"", "more"}};
  header.configuration = {{"lr", "0.001", "ds.json:7:3", "as it is"},
                          {"paths", R"(["a", "b"])", "default", ""}};
  header.prediction.emplace();
  header.prediction->update_mode = UpdateMode::next_forward;
  header.prediction->step.h2d_bytes = 77;
  header.prediction->step.time[TimeCause::compute] = 5;
  header.prediction->binding = Resource::disk_writes;
  header.prediction->rates = {{"copies", 2.5, "GB/s", "measured now"}};
  run.log.start(header);
  run.log.memory(5, {.tiers = {{"host", 5, "as configured", 4, 3, 4, {{"states", 3}}}},
                     .paths = {{"/nvme", 8, 9, 0}},
                     .bound = {.h2d_bytes = 6},
                     .commits = CommitTotals{1, 2, 3},
                     .process_bytes = 100});
  run.log.memory(6, {.tiers = {}, .paths = {}, .bound = {}, .commits = {}, .process_bytes = 90});
  run.log.ended({.step = 6, .failed = true, .stopped_by = "a disk", .survives = "nothing"});
  const RunHeader& read = run.record.header();
  EXPECT_EQ(start_line(read), start_line(header));
  EXPECT_EQ(read.configuration[0].note, "as it is");
  EXPECT_EQ(read.configuration[1].value, R"(["a", "b"])");
  EXPECT_EQ(read.prediction->step.h2d_bytes, 77u);
  EXPECT_EQ(run.record.commit_step(), 4u);
  EXPECT_EQ(run.record.memory().process_bytes, 100u);  // the most
  EXPECT_EQ(run.record.state(), RunState::failed);
  EXPECT_EQ(run.record.state_text(), "a disk\n  nothing");
  EXPECT_EQ(run.record.completed_steps(), 6u);
  // Another run in the same log.
  run.start("another");
  EXPECT_EQ(run.record.header().model, "another");
  EXPECT_EQ(run.record.state(), RunState::starting);
  EXPECT_EQ(run.record.memory().process_bytes, 0u);
}

// As Terrace wrote it before there were pages of logs, with half a line of a run that was killed.
constexpr const char* kFormer =
    R"({"event": "start", "step": 0, "steps": 3, "time": "2026-01-31T12:00:00Z", "version": "0.1", "model": "m", "config": {"lr": 0.5}})"
    "\n"
    R"({"event": "step", "step": 1, "loss": 2.5, "lr": 0.5, "gradient_norm": null, "seconds": 0.5, "time_ns": {"compute": 500000000}, "h2d_bytes": 7})"
    "\n"
    R"({"event": "step", "step": 2, "lo)"
    "\n"
    R"({"event": "step", "step": 2, "loss": null, "lr": 0.5, "gradient_norm": 1, "seconds": 0.25, "unknown": [1], "h2d_bytes": 8})"
    "\n"
    R"({"event": "epoch", "step": 1})"
    "\n"
    R"({"event": "of another version", "step": 1})"
    "\n"
    R"({"event": "failed", "step": 2, "failure": "a disk", "survives": "the commit"})"
    "\n";

TEST(RunRecord, ReadsTheLogOfAnEarlierTerrace) {
  const ScratchFolder folder;
  std::ofstream(folder / "log") << kFormer;
  const RunRecord record = read_run(folder / "log");
  EXPECT_EQ(record.all().count, 2u);
  EXPECT_EQ(record.all().total_ns, 750'000'000u);
  EXPECT_EQ(record.moved().h2d_bytes, 15u);
  EXPECT_EQ(record.commits().count(), 1u);
  EXPECT_EQ(record.header().configuration.front().key, "lr");
  EXPECT_EQ(record.state(), RunState::failed);
  EXPECT_EQ(record.state_text(), "a disk\n  the commit");
}

TEST(RunRecord, SaysWhichLineOfALogIsWrong) {
  const ScratchFolder folder;
  std::ofstream(folder / "log") << kFormer << R"({"event": "step", "step": "3"})"
                                << "\n";
  expect_error(ErrorKind::corrupt, {"log:8: step", "of another type"}, [&] { read_run(folder / "log"); });
  std::ofstream(folder / "text") << "a text\nof two lines\n";
  expect_error(ErrorKind::config, {"text", "no line of it begins a run"}, [&] { read_run(folder / "text"); });
  expect_error(ErrorKind::io, {"nowhere"}, [&] { read_run(folder / "nowhere"); });
}

}  // namespace
}  // namespace terrace::run_record_test
