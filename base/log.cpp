#include <terrace/base/log.h>

#include <cstdio>

#include <terrace/base/text/shown_text.h>

namespace terrace {

void Log::warning_once(std::string_view line) {
  {
    const std::lock_guard lock(said_mutex_);
    if (!said_.emplace(line).second) return;
  }
  warning(line);
}

void StderrLog::write(LogLevel level, std::string_view line) {
  const char* prefix = level == LogLevel::info      ? "terrace: "
                       : level == LogLevel::warning ? "terrace: warning: "
                                                    : "terrace: error: ";
  const std::string shown = shown_message(line);
  const std::lock_guard lock(mutex_);
  std::fprintf(stderr, "%s%s\n", prefix, shown.c_str());
}

void MemoryLog::write(LogLevel level, std::string_view line) {
  const std::lock_guard lock(mutex_);
  lines_.push_back({level, std::string(line)});
}

std::vector<MemoryLog::Line> MemoryLog::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

}  // namespace terrace
