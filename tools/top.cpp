// `terrace top`: a running job, looked at again and again until it ends or Ctrl-C is pressed. It only asks.
#include <fmt/format.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>

#include <terrace/base/shown_text.h>

#include "command_line.h"
#include "job_choice.h"
#include "job_view.h"

namespace terrace {
namespace {

// A handler has no argument of ours.
std::atomic<bool> g_interrupted{false};

void on_interrupt(int) {
  g_interrupted = true;
}

// What blocks returns: no SA_RESTART.
void end_on_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void pause_for(double seconds) {
  timespec wait{};
  wait.tv_sec = static_cast<time_t>(seconds);
  wait.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  nanosleep(&wait, nullptr);
}

// Over what was there, line by line, so that nothing flickers.
std::string redrawn(const std::string& text) {
  std::string screen = "\x1b[H";
  for (const char c : text) screen += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  return screen + "\x1b[J";
}

class Top final : public Subcommand {
 public:
  explicit Top(Command& app) {
    Command command = app.add_subcommand(name_, "Watch a running job");
    command
        .add_option("JOB", job_, "A process id, or the path of a socket; without it, the only job that runs")
        .type_name("");
    add_number(command, "--interval", 0.1, 3600, interval_seconds_,
               "Seconds from one look to the next (default 1)", "Options");
    command.add_flag("--once", once_, "Look once");
    command.add_flag("--json", json_, "Print one JSON object per look");
    command.footer(
        "It ends with Ctrl-C, or with the job. \"hits\" are the optimizer states that a step finds in host "
        "memory; \"moved\" and \"waited\" are those of the last step, by the names of the log of steps.\n\n"
        "Examples:\n"
        "  terrace top\n"
        "  terrace top 4711 --once --json\n");
  }

  const std::string& name() const override { return name_; }

  int run() override {
    if (!job_.empty() && !is_job(job_)) {
      throw Error(ErrorKind::config, {"cannot use", job_, "it is neither a process id nor a path",
                                      "`terrace top` without a job takes the only one that runs"});
    }
    ControlClient client(find_job(job_).socket);
    end_on_interrupt();
    redraws_ = isatty(STDOUT_FILENO) == 1 && !json_ && !once_;
    if (redraws_) print_as_it_is("\x1b[2J");
    try {
      while (!g_interrupted) {
        show(client);
        if (once_) break;
        pause_for(interval_seconds_);
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
    const std::string text = shown_lines(json_ ? job_status_json(status) + "\n" : job_view(status));
    const std::string gap = json_ || once_ ? "" : "\n";
    print_as_it_is(redraws_ ? redrawn(text) : text + gap);
  }

  const std::string name_ = "top";
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
