// Console: all messages of the program while it works, on stderr: log lines, blocks of text, and one progress
// line that is rewritten in place on a terminal. It does not print results, which go to stdout.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>

namespace terrace {

// Returns the columns of the terminal behind `fd`, 80 if it does not say, and 0 if it is no terminal.
size_t terminal_columns(int fd);
// Returns the columns for a result on stdout: the variable COLUMNS of the environment, else the terminal's;
// 0: any width.
size_t result_columns();

// Thread-safe: a log line of another thread never lands inside the progress line.
class Console final : public Log {
 public:
  Console();
  ~Console() override;  // ends the progress line
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // From now on this is one of several ranks that write to one place, and not the first: only warnings and
  // errors are written, with `ranks` before them: "rank 2", "ranks 1 and 2". Call it while no other thread
  // writes.
  void speak_for(std::string ranks) { ranks_ = std::move(ranks); }

  bool is_terminal() const { return is_terminal_; }
  // Returns the terminal's columns; 0 if there is none.
  size_t columns() const;
  // Sets another receiver of the log's lines; null stands for none. Call before other threads write.
  void copy_to(Log* other) { other_ = other; }
  Door door() const override { return Door::program; }
  // Writes "terrace: warning: ..." on a line of its own.
  void write(LogLevel level, std::string_view line) override;
  // Writes as progress() does, unless a step was shown a moment ago. Without a terminal it writes a line
  // every ten seconds.
  void in_passing(std::string_view line) override;
  void end_passing() override;
  // On a terminal, writes as progress() does, unless another line was shown in the last two seconds. The line
  // is cut at its commas. Without a terminal it writes nothing.
  void meanwhile(std::string_view line);
  // Prints several lines; the text ends with a newline.
  void print(std::string_view text);
  // On a terminal the line replaces the last one, cut to the width; elsewhere it is a line of its own.
  void progress(std::string_view line);
  // Leaves the last progress line on the terminal.
  void end_progress();

 private:
  void clear_progress();
  void put_over(std::string_view line);
  void put(std::string_view text);

  std::mutex mutex_;
  Log* other_ = nullptr;
  std::optional<std::string> ranks_;  // of one that is not the first
  bool is_terminal_;
  bool line_is_open_ = false;
  SteadyClock clock_;
  uint64_t progress_ns_ = 0;  // when progress() was last called
  uint64_t passing_ns_ = 0;   // when in_passing() last wrote a line
};

}  // namespace terrace
