#include "console.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <terrace/base/text/shown_text.h>

#include "wrapped_text.h"

namespace terrace {
namespace {

constexpr uint64_t kLineIsNewNs = 2'000'000'000;

// Returns the line without the parts at its end for which there is no room.
std::string fitted(std::string line, size_t columns) {
  while (line.size() > columns) {
    const size_t comma = line.rfind(", ");
    line.resize(comma == std::string::npos ? columns : comma);
  }
  return line;
}

}  // namespace

size_t terminal_columns(int fd) {
  winsize size{};
  if (isatty(fd) != 1) return 0;
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

size_t result_columns() {
  constexpr size_t kLeast = 20;
  const char* const given = std::getenv("COLUMNS");
  const size_t columns = given == nullptr ? 0 : static_cast<size_t>(std::strtoul(given, nullptr, 10));
  return columns >= kLeast ? columns : terminal_columns(STDOUT_FILENO);
}

Console::Console() : is_terminal_(isatty(STDERR_FILENO) == 1) {}

Console::~Console() {
  end_progress();
}

size_t Console::columns() const {
  return is_terminal_ ? terminal_columns(STDERR_FILENO) : 0;
}

void Console::write(LogLevel level, std::string_view line) {
  if (ranks_ && level == LogLevel::info) return;
  std::string text = ranks_ ? fmt::format("[{}] ", *ranks_) : "";
  text += level == LogLevel::info      ? "terrace: "
          : level == LogLevel::warning ? "terrace: warning: "
                                       : "terrace: error: ";
  text = wrapped_message(text.append(shown_message(line)), columns()) + "\n";
  if (other_ != nullptr) other_->write(level, line);
  const std::lock_guard lock(mutex_);
  clear_progress();
  put(text);
}

void Console::print(std::string_view text) {
  if (ranks_) return;
  const std::lock_guard lock(mutex_);
  clear_progress();
  put(shown_lines(text));
}

void Console::progress(std::string_view line) {
  if (ranks_) return;
  const std::lock_guard lock(mutex_);
  progress_ns_ = clock_.now_ns();
  is_terminal_ ? put_over(line) : put(std::string(line) + "\n");
}

void Console::meanwhile(std::string_view line) {
  if (ranks_ || !is_terminal_) return;
  const std::lock_guard lock(mutex_);
  const uint64_t shown_ns = std::max(progress_ns_, passing_ns_);
  if (shown_ns > 0 && clock_.now_ns() - shown_ns < kLineIsNewNs) return;
  put_over(fitted(shown_message(line), columns() - 1));
}

void Console::in_passing(std::string_view line) {
  constexpr uint64_t kBetweenLinesNs = 10'000'000'000;
  if (ranks_) return;
  const std::lock_guard lock(mutex_);
  const uint64_t now = clock_.now_ns();
  if (progress_ns_ > 0 && now - progress_ns_ < kLineIsNewNs) return;
  if (is_terminal_) {
    passing_ns_ = now;
    const std::string name = "terrace: ";
    const std::string text = shown_message(line);
    const size_t room = columns() - 1;
    return put_over(fitted(name.size() + text.size() <= room ? name + text : text, room));
  }
  if (passing_ns_ > 0 && now - passing_ns_ < kBetweenLinesNs) return;
  passing_ns_ = now;
  put("terrace: " + shown_message(line) + "\n");
}

void Console::end_passing() {
  const std::lock_guard lock(mutex_);
  clear_progress();
}

void Console::put_over(std::string_view line) {
  // A line that wraps could not be taken back. The last column stays empty, because some terminals wrap after
  // it.
  put("\r\x1b[K" + std::string(line.substr(0, columns() - 1)));
  line_is_open_ = true;
}

void Console::end_progress() {
  const std::lock_guard lock(mutex_);
  if (line_is_open_) put("\n");
  line_is_open_ = false;
}

void Console::clear_progress() {
  if (line_is_open_) put("\r\x1b[K");
  line_is_open_ = false;
}

// If stderr cannot be written to, nobody can be told, so the failure is ignored.
void Console::put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace terrace
