// TrainingRun: the loop of `terrace train`: steps, evaluations, states to keep and requests, until the last
// step or a wish to stop. It plans nothing and allocates little.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <terrace/base/error.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/ranks/rank_watch.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/run_saves.h"
#include "train/stop_signals.h"

namespace terrace {

class TrainingRun {
 public:
  struct Parts {
    const TrainFlags& flags;
    Trainer& trainer;
    RunSaves& saves;
    std::span<RunObserver* const> observers;
    const StopSignals& signals;
    JobControl* control;  // null if nobody can reach the run
    RankWatch& others;
    Console& console;
  };
  // Everything that `parts` names outlives the run.
  explicit TrainingRun(const Parts& parts) : parts_(parts) {}

  // Trains to the end, or to the end of the step in which a signal arrived, and keeps the state. After a
  // failure the state is saved if it is still whole.
  void run();
  // Tells the observers how the run ended. Returns the error for the user if the run did not come to its end;
  // its last line says what survives and how to go on.
  std::optional<Error> end();

 private:
  void train();
  Error own_failure(const Error& failure);
  void evaluate();
  void answer_requests();
  void tell_what_is_kept();
  HostBudgetChange set_host_budget(uint64_t bytes);
  Error stopped() const;

  // True on all ranks where any of them was asked to stop.
  bool is_to_stop() { return stops_ = stops_ || parts_.trainer.any_rank(parts_.signals.requested()); }

  const Parts parts_;
  bool stops_ = false;
  std::optional<Error> failure_;  // set if the run failed
  bool rank_died_ = false;        // that is the failure
};

}  // namespace terrace
