// Log: takes the lines that are meant for the user. The library writes nothing to a stream by itself.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/error.h>

namespace terrace {

enum class LogLevel : uint8_t { info, warning, error };

class Log {
 public:
  virtual ~Log() = default;
  // Writes one line, given without its newline. Thread-safe.
  virtual void write(LogLevel level, std::string_view line) = 0;
  // Shows how far something has come, in a line that the next one may replace; end_passing() ends the series.
  // By default both do nothing. Thread-safe.
  virtual void in_passing(std::string_view) {}
  virtual void end_passing() {}

  // Where the lines are read: what names an option is given in the words of this door.
  virtual Door door() const { return Door::cpp; }

  void info(std::string_view line) { write(LogLevel::info, line); }
  void warning(std::string_view line) { write(LogLevel::warning, line); }
  void error(std::string_view line) { write(LogLevel::error, line); }
  void warning(const Error& failure) { warning(failure.in(door())); }
  // Writes a warning only the first time that it is given to this log.
  void warning_once(std::string_view line);
  void warning_once(const Error& failure) { warning_once(failure.in(door())); }

 private:
  std::mutex said_mutex_;
  std::set<std::string, std::less<>> said_;
};

// Writes "terrace: warning: ..." to stderr.
class StderrLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) override;

 private:
  std::mutex mutex_;
};

// Keeps the lines; for tests and for embedding programs that show them elsewhere.
class MemoryLog final : public Log {
 public:
  struct Line {
    LogLevel level;
    std::string text;
  };
  void write(LogLevel level, std::string_view line) override;
  std::vector<Line> lines() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace terrace
