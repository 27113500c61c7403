// FollowedRun: everybody who follows a run of `terrace train` while it trains, and the threads that look at
// it: log, page, monitors, progress, the other ranks, the watchdog, and who asks over the socket.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/memory_lines.h>
#include <terrace/runtime/observe/monitor/run_monitor.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace/runtime/ranks/rank_watch.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/passed_when_kept.h"
#include "train/planned_run.h"
#include "train/run_report.h"
#include "train/step_progress.h"
#include "train/stop_signals.h"
#include "train/train_summary.h"

namespace terrace {

class FollowedRun {
 public:
  struct Parts {
    const TrainFlags& flags;
    PlannedRun& run;
    Trainer& trainer;
    RunReport& report;
    PassedWhenKept& passed;
    StopSignals& signals;
    RankWatch& others;
    Console& console;
  };
  // Begins log, recording and page. Everything that `parts` names outlives this.
  explicit FollowedRun(const Parts& parts);

  // The page shows what the log has, whose last line is the log's own.
  std::span<RunObserver* const> observers() const { return observers_; }
  // Null if nobody can reach the run.
  JobControl* control() const { return control_.get(); }

 private:
  std::unique_ptr<WatchdogThread> start_watchdog() const;
  std::unique_ptr<JobControl> start_control() const;

  const Parts parts_;
  const StepShape shape_;
  MemoryLines memory_;
  RunMonitor monitor_;
  StepProgress progress_;
  const std::unique_ptr<WatchdogThread> watchdog_;
  const RankWatch::Following following_;
  const std::unique_ptr<JobControl> control_;
  std::vector<RunObserver*> observers_;
};

}  // namespace terrace
