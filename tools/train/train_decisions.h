// TrainDecisions: what `terrace train --decisions` and `--replay-decisions` do to a run. Without these flags
// it does nothing.
#pragma once

#include <memory>

#include <terrace/base/log.h>
#include <terrace/runtime/train/planning/decision_file.h>
#include <terrace/runtime/train/setup/training_setup.h>

#include "flags/train_flags.h"

namespace terrace {

class TrainDecisions {
 public:
  // `setup` is the plan of the run. Opens the log that is replayed, and writes nothing. Throws what
  // DecisionReplay throws.
  TrainDecisions(const TrainingSetup& setup, const TrainFlags& flags);

  // The run is made with `setup`; `log` and this object outlive it. Throws what DecisionFile throws.
  void apply_to(TrainingSetup& setup, Log& log);

 private:
  const TrainFlags& flags_;
  std::unique_ptr<DecisionFile> file_;
  std::unique_ptr<DecisionReplay> replay_;
};

}  // namespace terrace
