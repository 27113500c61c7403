// PassedWhenKept: tells PassedSets of the commits of a run.
#pragma once

#include <terrace/runtime/checkpoint/passed_sets.h>
#include <terrace/runtime/observe/log/run_observer.h>

namespace terrace {

class PassedWhenKept final : public RunObserver {
 public:
  // `sets` outlives this.
  explicit PassedWhenKept(PassedSets& sets) : sets_(sets) {}

  void state_kept(const KeptState& kept) override {
    if (kept.commit_step) sets_.commit_kept();
  }
  // The run is complete and saved.
  void commits_removed() override { sets_.commit_kept(); }

 private:
  PassedSets& sets_;
};

}  // namespace terrace
