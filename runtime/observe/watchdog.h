// Watchdog reports what a training step waits for when it makes no progress. It ends the run only if it was
// told to, and it touches nothing of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/base/option.h>
#include <terrace/base/polling_thread.h>
#include <terrace/base/wording.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

struct WatchdogOptions {
  uint64_t warn_after_ns = 60'000'000'000;  // age of one wait; repeated at twice the age or earlier
  uint64_t abort_after_ns = 0;              // 0: never
  Wording asked_by = Option::stall_abort;   // the abort
  // Of several ranks: what the others do, for the warning of a wait for them, or nothing where another rank
  // warns of that. It may take a moment. Null: there are none.
  std::function<std::optional<std::string>()> others = nullptr;
};

// The decision alone: which message is due at a moment. Used by one thread.
class Watchdog {
 public:
  // The watch and the log outlive the watchdog.
  Watchdog(const StepWatch& watch, const WatchdogOptions& options, Log& log)
      : watch_(watch), options_(options), log_(log) {}

  // Looks at the watch once; times never go back. The age of a wait counts from the first look that saw it.
  // Returns true, after a message, if the wait is old enough to abort.
  bool look(uint64_t now_ns);

 private:
  void forget(uint64_t now_ns);

  const StepWatch& watch_;
  const WatchdogOptions options_;
  Log& log_;
  std::optional<uint64_t> wait_;
  uint64_t since_ns_ = 0;
  uint64_t warn_at_age_ns_ = 0;
  bool warned_ = false;
};

// A thread that looks every second until it is destroyed. `abort` is called on it, at most once.
class WatchdogThread {
 public:
  WatchdogThread(const StepWatch& watch, const WatchdogOptions& options, Log& log,
                 std::function<void()> abort);

 private:
  Watchdog watchdog_;
  const SteadyClock clock_;
  PollingThread thread_;  // last: it uses the others
};

}  // namespace terrace
