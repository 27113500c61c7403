// StopSignals: SIGINT, SIGTERM, SIGHUP and `terrace ctl stop`, as a wish to stop. The first wish is
// remembered, so that the step in progress ends and the state can be saved. The second one ends the program
// at once, except SIGHUP, because a closed terminal sends several. The handler does nothing else.
#pragma once

#include <signal.h>

#include <array>
#include <string_view>

namespace terrace {

// At most one exists at a time. Its destructor restores the earlier handlers.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Makes the same wish without a signal, on any thread. A signal after it is the second wish.
  void request();
  bool requested() const;
  // Returns "SIGINT", "terrace ctl stop" and the like; empty without a wish.
  std::string_view name() const;

 private:
  std::array<struct sigaction, 3> earlier_{};
};

}  // namespace terrace
