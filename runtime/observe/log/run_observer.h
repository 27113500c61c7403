// RunObserver: whoever follows a training run: its log, trace, page, monitors, status and progress.
// A run has one list of observers and tells all of them every fact, in the order of the list.
//
// Observers are called on the thread that trains, between two steps. A function that throws Error ends the
// run as a failed step does.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/state_keeper.h>
#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

struct RunEnd {
  uint64_t step = 0;       // completed steps of the whole run
  bool failed = false;     // an error ended the run; else a signal or its last step did
  std::string stopped_by;  // "SIGINT", or what failed; empty where the run is complete
  std::string survives;    // of a failed run: which states are left, and how to go on from them
  std::string told = {};   // what the user is told; empty where the run is complete, or nobody is
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;

  // Step `step` of the whole run is about to begin.
  virtual void step_begins(uint64_t /*step*/) {}
  virtual void step_done(const StepReport&) {}
  // The last step's update has ended outside a step.
  virtual void update_finished(const FinishedUpdate&) {}
  // `loss` is the held-out loss after `step` completed steps, in nats per token.
  virtual void evaluated(uint64_t /*step*/, double /*loss*/) {}
  virtual void state_kept(const KeptState&) {}
  // The run is complete and saved as a checkpoint, so that nvme keeps no commit of it.
  virtual void commits_removed() {}
  virtual void ended(const RunEnd&) {}
};

}  // namespace terrace
