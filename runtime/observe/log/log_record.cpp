#include <terrace/runtime/observe/log/log_record.h>

namespace terrace {

void LogRecord::write(LogLevel level, std::string_view line) {
  if (level == LogLevel::info) return;
  const MutexLock lock(mutex_);
  if (lines_.size() == room_) {
    ++left_out_;
    return;
  }
  lines_.push_back({level, completed_steps_, std::string(line)});
}

std::vector<LoggedLine> LogRecord::lines() const {
  const MutexLock lock(mutex_);
  return lines_;
}

uint64_t LogRecord::left_out() const {
  const MutexLock lock(mutex_);
  return left_out_;
}

}  // namespace terrace
