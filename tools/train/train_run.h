// TrainingRun: the loop of `terrace train`: steps, evaluations, states to keep and requests, until the last
// step or until somebody wants it to stop. It plans nothing and allocates nothing of size.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/train/trainer.h>

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
    JobControl* control;  // null where nobody can reach the run
    Console& console;
  };
  // All that `parts` names outlives the run.
  explicit TrainingRun(const Parts& parts) : parts_(parts) {}

  // Trains to the end, or to the end of the step in which a signal arrived, and keeps the state. After a
  // failure the state is saved when it is still whole.
  void run();
  // Tells the observers how the run ended. Returns what the user is told where the run did not come to its
  // end: the last line says what survives, and how to go on from there.
  std::optional<Error> end();

 private:
  void train();
  void evaluate();
  void answer_requests();
  HostBudgetChange set_host_budget(uint64_t bytes);
  Error stopped() const;

  const Parts parts_;
  std::optional<Error> failure_;  // of a run that failed
};

}  // namespace terrace
