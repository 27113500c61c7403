// `terrace top`: shows a running job again and again until it ends or q or Ctrl-C is pressed. It only asks
// and changes nothing.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string_view>

#include <terrace/base/clock.h>
#include <terrace/base/text/shown_text.h>

#include "command_line.h"
#include "console.h"
#include "inspect/job_choice.h"
#include "inspect/job_view.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

// A signal handler has no argument of ours, so this variable is global.
std::atomic<bool> g_interrupted{false};

void on_interrupt(int) {
  g_interrupted = true;
}

// Cuts a line to as many characters of UTF-8. Characters wider than one column are seldom in a name.
std::string_view cut_to(std::string_view line, size_t columns) {
  size_t count = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80 && count++ == columns) return line.substr(0, i);
  }
  return line;
}

// Without SA_RESTART a blocking call returns when the signal comes.
void end_on_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// Keys: reads the keys of the terminal on stdin, one at a time and without echo, for as long as it lives.
class Keys {
 public:
  explicit Keys(bool is_wanted) {
    is_read_ = is_wanted && isatty(STDIN_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
               tcgetattr(STDIN_FILENO, &before_) == 0;
    if (!is_read_) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    now.c_cc[VMIN] = 1;
    now.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &now);
  }
  ~Keys() {
    if (is_read_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // Waits this long, or until q is pressed or a signal comes. Returns true if q was pressed or the terminal
  // is gone.
  bool ends_within(double seconds) {
    const SteadyClock clock;
    const uint64_t end = clock.now_ns() + static_cast<uint64_t>(seconds * 1e9);
    for (uint64_t now = clock.now_ns(); now < end && !g_interrupted; now = clock.now_ns()) {
      pollfd keys{is_read_ ? STDIN_FILENO : -1, POLLIN, 0};
      if (poll(&keys, 1, static_cast<int>((end - now) / 1'000'000 + 1)) <= 0) continue;
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) != 1) return true;  // the terminal is gone
      if (key == 'q' || key == 'Q') return true;
    }
    return false;
  }

 private:
  termios before_{};
  bool is_read_ = false;
};

// Lines that are too wide go on below themselves, behind their names.
std::string wrapped_row(const std::string& line, size_t columns) {
  constexpr size_t kNameColumns = 8;
  if (columns == 0 || line.size() <= columns) return line;
  const bool is_named =
      line.size() > kNameColumns && line[kNameColumns - 1] == ' ' && line[kNameColumns] != ' ';
  const size_t name = is_named ? kNameColumns : 0;
  std::string rest = line.substr(name);
  for (size_t at = 0; (at = rest.find("  ", at)) != std::string::npos;) rest.erase(at, 1);
  return line.substr(0, name) + wrapped(rest, name, kNameColumns, columns);
}

std::string wrapped_rows(const std::string& text, size_t columns) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result += wrapped_row(text.substr(begin, end - begin), columns) + "\n";
    begin = end + 1;
  }
  return result;
}

// Writes over the earlier text line by line, so that nothing flickers and nothing wraps.
std::string redrawn(const std::string& text, size_t columns) {
  std::string screen = "\x1b[H";
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    screen += cut_to(std::string_view(text).substr(begin, end - begin), columns);
    screen += "\x1b[K\n";
    begin = end + 1;
  }
  return screen + "\x1b[J";
}

class Top final : public Subcommand {
 public:
  explicit Top(Command& app) : Subcommand(app, "top", "Watch a running job") {
    const FlagGroup group(command_);
    group.text("JOB", "", job_, "A process id, or the path of a socket; without it, the only job that runs");
    group.number("--interval", 0.1, 3600, interval_seconds_, "Seconds from one look to the next (default 1)");
    group.yes("--once", once_, "Look once");
    group.yes("--json", json_, "Print one JSON object per look");
    command_.footer(
        "It ends with q or Ctrl-C, or with the job. \"states\" are the optimizer states that stay in host "
        "memory, so that a step neither reads nor writes them; \"moved\" and \"waited\" are those of the "
        "last "
        "step; \"now\" is where the step in progress is.\n\n"
        "Examples:\n"
        "  terrace top\n"
        "  terrace top 4711 --once --json\n");
  }

  int run() override {
    if (!job_.empty() && !is_job(job_)) {
      refuse(job_, "it is neither a process id nor a path",
             "`terrace top` without a job takes the only one that runs");
    }
    ControlClient client(find_job(job_).socket);
    end_on_interrupt();
    redraws_ = isatty(STDOUT_FILENO) == 1 && !json_ && !once_;
    if (redraws_) print_as_it_is("\x1b[2J");
    Keys keys(redraws_);
    try {
      while (!g_interrupted) {
        show(client);
        if (once_) break;
        if (keys.ends_within(interval_seconds_)) break;
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
      if (client.has_ended()) std::fputs("terrace: the job has ended\n", stderr);
    }
    return kDone;
  }

 private:
  void show(ControlClient& client) const {
    const JobStatus status = ask_status(client);
    const std::string text = shown_lines(json_ ? job_status_json(status) + "\n"
                                               : wrapped_rows(job_view(status), result_columns()));
    const std::string gap = json_ || once_ ? "" : "\n";
    print_as_it_is(redraws_ ? redrawn(text, terminal_columns(STDOUT_FILENO)) : text + gap);
  }

  std::string job_;
  double interval_seconds_ = 1;
  bool once_ = false;
  bool json_ = false;
  bool redraws_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> add_top(Command& app) {
  return std::make_unique<Top>(app);
}

}  // namespace terrace
