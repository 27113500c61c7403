#include <terrace/runtime/observe/log/log_record.h>

#include <fmt/format.h>

#include <utility>

namespace terrace {

void LogRecord::write(LogLevel level, std::string_view line) {
  if (other_ != nullptr) other_->write(level, line);
  if (level == LogLevel::info) return;
  const MutexLock lock(mutex_);
  if (lines_.size() == room_) {
    ++left_out_;
    return;
  }
  lines_.push_back({level, completed_steps_, std::string(line)});
}

std::vector<LoggedLine> LogRecord::take() {
  const MutexLock lock(mutex_);
  if (const uint64_t lost = std::exchange(left_out_, 0); lost > 0)
    lines_.push_back({LogLevel::warning, completed_steps_, fmt::format("{} more lines were lost", lost)});
  return std::exchange(lines_, {});
}

}  // namespace terrace
