// StopSignals: SIGINT, SIGTERM, SIGHUP and `terrace ctl stop`, as a wish to stop, and for one of several
// ranks SIGUSR1, which launchers pass on at once. The first wish is remembered, so that the step in progress
// ends and the state can be saved. The second one ends the program at once, except SIGHUP, because a closed
// terminal sends several. The handler does nothing else.
#pragma once

#include <signal.h>

#include <array>
#include <string_view>

namespace terrace {

struct StopSignalsOptions {
  bool several_ranks = false;
  bool says_so = true;  // to the user, when a signal comes
};

// At most one exists at a time. Its destructor restores the earlier handlers.
class StopSignals {
 public:
  explicit StopSignals(StopSignalsOptions options = {});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Makes the same wish without a signal, on any thread. A signal after it is the second wish.
  void request();
  bool requested() const;
  // Returns "SIGINT", "terrace ctl stop" and the like; empty without a wish.
  std::string_view name() const;

 private:
  std::array<struct sigaction, 4> earlier_{};
};

// From now on a signal is no wish of the user and nothing is said of it: a rank has died, and the launcher
// ends the others. Any thread may call it.
void pass_over_stop_signals();

}  // namespace terrace
