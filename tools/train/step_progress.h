// StepProgress: the progress of a run for a person at the terminal: the progress line, evaluations, skipped
// steps and, with wall_clock_breakdown, the times of a step. Of a step that takes longer than two seconds a
// thread of its own says where it is: on a terminal twice a second, elsewhere after a minute and then ever
// more seldom.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <string>
#include <thread>

#include <terrace/base/clock.h>
#include <terrace/base/mutex.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/observe/step_place.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/stop_signals.h"

namespace terrace {

// What tells where the step in progress is, and whether it is the last one. All outlive the StepProgress.
struct StepSources {
  const StepWatch& watch;
  const StopSignals& signals;
  StepShape shape;
  double untrained_loss = 0;  // of a model that gives every token of the vocabulary the same chance
};

class StepProgress final : public RunObserver {
 public:
  // `run` has each step before this object does. All arguments outlive it.
  StepProgress(const TrainFlags& flags, const TrainConfig& config, const RunRecord& run,
               const StepSources& sources, Console& console);
  ~StepProgress() override;
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  void step_begins(uint64_t step) override;
  void step_done(const StepReport& report) override;
  void evaluated(uint64_t step, double loss) override;

 private:
  void warn_of_explosion(const StepReport& report) TERRACE_REQUIRES(mutex_);
  void show(const StepReport& report) TERRACE_REQUIRES(mutex_);
  double seconds_left(uint64_t step) const TERRACE_REQUIRES(mutex_);
  // What the thread does.
  void watch_steps();
  void look() TERRACE_REQUIRES(mutex_);
  void say_where_it_stops(const std::string& place) TERRACE_REQUIRES(mutex_);

  const TrainFlags& flags_;
  const TrainConfig& config_;
  const RunRecord& run_;
  Console& console_;
  const SteadyClock clock_;
  const uint64_t lines_every_;
  const StepSources sources_;
  Mutex mutex_;
  std::condition_variable_any end_asked_;
  bool ends_ TERRACE_GUARDED_BY(mutex_) = false;
  bool warned_of_explosion_ TERRACE_GUARDED_BY(mutex_) = false;
  bool said_where_it_stops_ TERRACE_GUARDED_BY(mutex_) = false;
  uint64_t step_ TERRACE_GUARDED_BY(mutex_) = 0;  // in progress; 0: none is
  uint64_t begun_ns_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t line_ns_ TERRACE_GUARDED_BY(mutex_) = 0;     // when the last line was written, or the step began
  uint64_t shown_ns_ TERRACE_GUARDED_BY(mutex_) = 0;    // when a step was last shown
  uint64_t silence_ns_ TERRACE_GUARDED_BY(mutex_) = 0;  // after which a step in progress gets a line
  double mean_seconds_ TERRACE_GUARDED_BY(mutex_) = 0;  // of a step; 0: none is done
  double loss_ TERRACE_GUARDED_BY(mutex_) = 0;          // of the last step
  std::thread thread_;                                  // last: it uses the others
};

}  // namespace terrace
