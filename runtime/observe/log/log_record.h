// LogRecord: the warnings and errors of a run's log, each with the steps completed before it. It is bounded:
// lines that come when it is full are counted and not kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/base/mutex.h>

namespace terrace {

struct LoggedLine {
  LogLevel level = LogLevel::warning;
  uint64_t completed_steps = 0;  // steps completed when the line was written
  std::string text;
};

class LogRecord final : public Log {
 public:
  explicit LogRecord(size_t room) : room_(room) {}

  // Thread-safe. Ignores lines that are neither warnings nor errors.
  void write(LogLevel level, std::string_view line) override;
  // Sets the completed steps of later lines.
  void set_completed_steps(uint64_t steps) { completed_steps_ = steps; }

  std::vector<LoggedLine> lines() const;
  uint64_t left_out() const;

 private:
  const size_t room_;
  std::atomic<uint64_t> completed_steps_{0};
  mutable Mutex mutex_;
  std::vector<LoggedLine> lines_ TERRACE_GUARDED_BY(mutex_);
  uint64_t left_out_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
