// LogRecord: the warnings and errors of a run's log, and with which step each came. It is bounded: what comes
// when it is full is counted and not kept.
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
  uint64_t completed_steps = 0;  // when it was written
  std::string text;
};

class LogRecord final : public Log {
 public:
  explicit LogRecord(size_t room) : room_(room) {}

  // Thread-safe. What is neither a warning nor an error is none of its business.
  void write(LogLevel level, std::string_view line) override;
  // Of what is written from now on.
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
