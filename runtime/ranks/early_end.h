// EarlyEnd: what SIGTERM does to a rank that mpirun has started for `terrace launch`. mpirun sends it to all
// ranks when one has failed, or when it has lost a host; those that end by it have not died by themselves,
// and the launcher is told so. Until the ranks have met it ends this one; then StopSignals takes it.
#pragma once

#include <terrace/comm/liveness/launcher_link.h>

namespace terrace {

// One exists at a time.
class EarlyEnd {
 public:
  // Does nothing where the link is closed. It outlives this.
  explicit EarlyEnd(const LauncherLink& link);
  ~EarlyEnd();
  EarlyEnd(const EarlyEnd&) = delete;
  EarlyEnd& operator=(const EarlyEnd&) = delete;
};

// Tells the launcher that this rank is asked to end, where there is an EarlyEnd. For signal handlers.
void say_that_mpirun_asks();

}  // namespace terrace
