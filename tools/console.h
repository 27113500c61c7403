// Console: everything the program says while it works, on stderr: log lines, blocks of text and one progress
// line that is rewritten in place on a terminal. Results go to stdout and are none of its business.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>

namespace terrace {

// Of the terminal behind `fd`, 80 where it does not say; 0: it is none.
size_t terminal_columns(int fd);

// Thread-safe: a log line of another thread never lands inside the progress line.
class Console final : public Log {
 public:
  Console();
  ~Console() override;  // ends the progress line
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Of the terminal; 0 where there is none.
  size_t columns() const;
  // Whoever else is to have the lines of the log; null: nobody. Before other threads write.
  void copy_to(Log* other) { other_ = other; }
  // "terrace: warning: ..." on a line of its own, in the program's words (option_words.h); so are its copies.
  void write(LogLevel level, std::string_view line) override;
  // As progress(), unless a step was shown a moment ago; elsewhere than on a terminal a line every ten
  // seconds.
  void in_passing(std::string_view line) override;
  void end_passing() override;
  // Several lines; the text ends with a newline.
  void print(std::string_view text);
  // On a terminal the line takes the place of the last one, cut to the width; elsewhere it is a line.
  void progress(std::string_view line);
  // What was written last stays.
  void end_progress();

 private:
  void clear_progress();
  void put_over(std::string_view line);
  void put(std::string_view text);

  std::mutex mutex_;
  Log* other_ = nullptr;
  bool is_terminal_;
  bool line_is_open_ = false;
  SteadyClock clock_;
  uint64_t progress_ns_ = 0;  // when progress() was called last
  uint64_t passing_ns_ = 0;   // when in_passing() wrote a line last
};

}  // namespace terrace
