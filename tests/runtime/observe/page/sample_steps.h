// Steps and runs as there could be, of any length, without training anything.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/runtime/observe/log/step_log.h>
#include <terrace/runtime/observe/page/run_record.h>

namespace terrace::testing {

// Of no two steps are all numbers alike, and the parts add up.
inline StepReport sample_step(uint64_t step) {
  StepReport report;
  const double wave = std::sin(static_cast<double>(step) * 0.7);
  report.step = step;
  report.loss = 2.0 + 3.0 * std::exp(-static_cast<double>(step) / 500) + 0.01 * wave;
  report.gradient_norm = 1.25 + wave / 3;
  report.learning_rate = 1e-3 / (1 + static_cast<double>(step));
  report.tokens = 4096;
  for (const TimeCause cause : kTimeCauses)
    report.moved.time[cause] = 1'000'003 * (1 + static_cast<uint64_t>(cause)) + step * 977 % 500'009;
  report.total_ns = report.moved.time.total_ns();
  report.forward_backward_ns = report.total_ns / 2;
  report.forward_ns = report.total_ns / 5;
  report.keeping_ns = report.total_ns / 8 + step;
  report.update_ns = report.total_ns - report.forward_backward_ns - report.keeping_ns;
  report.moved.h2d_bytes = 123'456'789'012 + step;
  report.moved.d2h_bytes = 98'765'432'109 + step;
  report.moved.param_read_bytes = 55'555'555'555 + step;
  report.moved.record_read_bytes = 777'777'777'777 + step;
  report.moved.record_write_bytes = 777'777'777'776 + step;
  report.moved.disk_busy_ns = report.total_ns / 3;
  report.moved.fetch_count = 7;
  return report;
}

// A run that nobody trains: what is told to its log is in the record of it.
struct SampleRun {
  SampleRun() {
    log.copy_to([this](std::string_view line) { record.add(line); });
  }
  SampleRun(const SampleRun&) = delete;
  SampleRun& operator=(const SampleRun&) = delete;

  void start(const std::string& model) {
    RunHeader header;
    header.model = model;
    log.start(header);
  }
  void checkpoint(uint64_t step, const std::string& folder) {
    log.state_kept({.commit_step = std::nullopt, .checkpoint = SavedCheckpoint{step, folder}});
  }
  void commit(uint64_t step) { log.state_kept({.commit_step = step, .checkpoint = std::nullopt}); }

  RunRecord record;
  LogRecord said;
  StepLog log{"", nullptr, &said};
};

}  // namespace terrace::testing
