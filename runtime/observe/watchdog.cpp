#include <terrace/runtime/observe/watchdog.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <terrace/aio/thread_identity.h>

namespace terrace {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kLongestSilenceNs = 3600 * kSecondNs;

}  // namespace

bool Watchdog::look(uint64_t now_ns) {
  const std::optional<uint64_t> wait = watch_.current();
  if (wait != wait_) {
    forget(now_ns);
    wait_ = wait;
    since_ns_ = now_ns;
    warn_at_age_ns_ = options_.warn_after_ns;
  }
  if (!wait_) return false;
  const uint64_t age_ns = now_ns - since_ns_;
  const bool abort = options_.abort_after_ns > 0 && age_ns >= options_.abort_after_ns;
  if (age_ns < warn_at_age_ns_ && !abort) return false;
  const std::optional<std::string> text = watch_.describe(*wait_);
  if (!text) return false;  // over since; the next look sees that
  std::string line = fmt::format("no progress for {} s: {}", age_ns / kSecondNs, *text);
  if (options_.others && watch_.is_for_ranks(*wait_)) {
    const std::optional<std::string> others = options_.others();
    if (!others && !abort) {
      warn_at_age_ns_ = age_ns + std::min(age_ns, kLongestSilenceNs);
      return false;
    }
    if (others) line += "; " + *others;
  }
  if (abort) {
    log_.error((Wording(line + "; giving up, as ") + options_.asked_by + " asks").in(log_.door()));
    return true;
  }
  log_.warning(line + (warned_ ? "" : "; the run goes on when it is done, and is not stopped for this"));
  warned_ = true;
  warn_at_age_ns_ = std::min(age_ns * 2, age_ns + kLongestSilenceNs);
  return false;
}

void Watchdog::forget(uint64_t now_ns) {
  if (warned_) log_.info(fmt::format("the run goes on after {} s", (now_ns - since_ns_) / kSecondNs));
  warned_ = false;
}

WatchdogThread::WatchdogThread(const StepWatch& watch, const WatchdogOptions& options, Log& log,
                               std::function<void()> abort)
    : watchdog_(watch, options, log),
      thread_(
          std::chrono::seconds(1),
          [this, abort = std::move(abort)] {
            if (!watchdog_.look(clock_.now_ns())) return true;
            abort();
            return false;
          },
          [] { io::become_background_thread("terrace-watch"); }) {}

}  // namespace terrace
