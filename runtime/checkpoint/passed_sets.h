// PassedSets: what runs with other numbers of ranks have left on the nvme paths of a run. Nobody else may use
// it while the run is there, and it goes when the run has a commit of its own, and not before.
#pragma once

#include <memory>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/runtime/checkpoint/state_set.h>

namespace terrace {

class PassedSets {
 public:
  // Takes the locks. Throws Error(io) where another job has one.
  PassedSets(const std::vector<StateSet>& sets, Log& log);

  bool are_left() const { return !sets_.empty(); }
  // The run has begun, with a state of its own in memory: what is no state goes at once, and the rest too
  // where the run keeps no commits.
  void begin(bool keeps_commits);
  // A commit of the run is durable, on all of its ranks.
  void commit_kept();

 private:
  struct Passed {
    std::unique_ptr<HeldSet> held;
    bool has_commits;
  };
  std::vector<Passed> sets_;
};

}  // namespace terrace
