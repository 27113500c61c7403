// PassedSets: what runs with other numbers of ranks have left on the nvme paths of a run. Nobody else may use
// it while the run is there, and it goes when the run has a commit of its own.
#pragma once

#include <memory>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/observe/log/run_observer.h>

namespace terrace {

class PassedSets final : public RunObserver {
 public:
  // Takes the locks. Throws Error(io) where another job has one.
  PassedSets(const std::vector<StateSet>& sets, Log& log);

  // The run has begun, with a state of its own in memory: what is no state goes at once, and the rest too
  // where the run keeps no commits.
  void begin(bool keeps_commits);
  void state_kept(const KeptState& kept) override;

 private:
  struct Passed {
    std::unique_ptr<HeldSet> held;
    bool has_commits;
  };
  std::vector<Passed> sets_;
};

}  // namespace terrace
