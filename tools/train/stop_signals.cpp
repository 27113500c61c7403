#include "train/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// The last one for several ranks alone.
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// A signal handler has no argument of ours, so these variables are global.
std::atomic<int> g_received{0};
std::atomic<bool> g_on_terminal{false};
std::atomic<bool> g_says_so{true};
std::atomic<bool> g_passes_over{false};
static_assert(std::atomic<int>::is_always_lock_free, "read and written inside a signal handler");

constexpr int kRequested = -1;  // no signal has this number

std::string_view notice_of(int number) {
  if (number == SIGINT)
    return "\r\x1b[Kterrace: stopping when the step in progress is over; press again to stop at once\n";
  if (number == SIGHUP)
    return "\r\x1b[Kterrace: SIGHUP was received: stopping when the step in progress is over\n";
  if (number == SIGUSR1)
    return "\r\x1b[Kterrace: SIGUSR1 was received: stopping when the step in progress is over; a second one "
           "stops at once\n";
  return "\r\x1b[Kterrace: SIGTERM was received: stopping when the step in progress is over; a second one "
         "stops at once\n";
}

// The terminal and its shell both send SIGHUP, so it counts as a wish but never towards a second one.
bool is_second(int number) {
  if (number != SIGHUP) {
    const int earlier = g_received.exchange(number);
    return earlier != 0 && earlier != SIGHUP;
  }
  int none = 0;
  g_received.compare_exchange_strong(none, number);
  return false;
}

void on_stop_signal(int number) {
  const int saved_errno = errno;
  if (g_passes_over) {
    errno = saved_errno;
    return;
  }
  if (is_second(number)) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  } else if (g_says_so) {
    constexpr size_t kTerminalPart = 4;  // the part of a notice that takes back the progress line
    const std::string_view notice = notice_of(number);
    const std::string_view shown = g_on_terminal ? notice : notice.substr(kTerminalPart);
    if (write(STDERR_FILENO, shown.data(), shown.size()) < 0) {
      // The notice cannot be shown, but the wish counts.
    }
  }
  errno = saved_errno;
}

}  // namespace

StopSignals::StopSignals(StopSignalsOptions options) {
  g_received = 0;
  g_says_so = options.says_so;
  g_on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const bool counts = kSignals[i] != SIGUSR1 || options.several_ranks;
    const int result = sigaction(kSignals[i], counts ? &action : nullptr, &earlier_[i]);
    TERRACE_ASSERT(result == 0, "sigaction: " + system_reason(errno));
    // nohup asked for SIGHUP to be ignored.
    if (kSignals[i] == SIGHUP && earlier_[i].sa_handler == SIG_IGN) sigaction(SIGHUP, &earlier_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &earlier_[i], nullptr);
}

void pass_over_stop_signals() {
  g_passes_over = true;
}

void StopSignals::request() {
  int none = 0;
  g_received.compare_exchange_strong(none, kRequested);
}

bool StopSignals::requested() const {
  return g_received != 0;
}

std::string_view StopSignals::name() const {
  const int number = g_received;
  if (number == kRequested) return "terrace ctl stop";
  switch (number) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "";
  }
}

}  // namespace terrace
