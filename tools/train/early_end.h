// EarlyEnd: what SIGTERM does to a rank that mpirun has started for `terrace launch`, until the ranks have
// met and it counts as a wish of the user's. mpirun sends it to all ranks when one has failed; those that end
// by it have not died by themselves, and the launcher is told so.
#pragma once

#include <terrace/comm/launcher_link.h>

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

}  // namespace terrace
