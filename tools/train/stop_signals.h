// StopSignals: SIGINT, SIGTERM and SIGHUP, and what `terrace ctl stop` asks for, as a wish to stop. The first
// one is remembered, so that the step in progress ends and the state can be saved; the second one ends the
// program at once, but SIGHUP never does: a closed terminal sends several. The handler does nothing else.
#pragma once

#include <signal.h>

#include <array>
#include <string_view>

namespace terrace {

// At most one at a time; restores the earlier handlers.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The same wish from somebody else than a signal, on any thread; a signal after it is the second one.
  void request();
  bool requested() const;
  // "SIGINT", "terrace ctl stop", or empty.
  std::string_view name() const;

 private:
  std::array<struct sigaction, 3> earlier_{};
};

}  // namespace terrace
