// LogRecord: the warnings and errors of a run on their way into the log of its steps, each with the steps
// completed before it. Lines come from any thread, and the step thread takes them out between two steps. It
// is bounded: of lines that come when it is full only their number is kept.
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
  static constexpr size_t kRoom = 300;

  // Every line goes to `other` as well, which may be null and outlives this.
  explicit LogRecord(Log* other = nullptr, size_t room = kRoom) : other_(other), room_(room) {}

  // Thread-safe. Keeps no lines that are neither warnings nor errors.
  void write(LogLevel level, std::string_view line) override;
  // Sets the completed steps of later lines.
  void set_completed_steps(uint64_t steps) { completed_steps_ = steps; }
  // Gives the lines out in their order, and after them one that says how many had no room.
  std::vector<LoggedLine> take();

 private:
  Log* const other_;
  const size_t room_;
  std::atomic<uint64_t> completed_steps_{0};
  Mutex mutex_;
  std::vector<LoggedLine> lines_ TERRACE_GUARDED_BY(mutex_);
  uint64_t left_out_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
