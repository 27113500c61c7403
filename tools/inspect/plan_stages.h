// The plans of `terrace plan --stages` and `--best-stages`, made but not printed.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/reference_machine.h>
#include <terrace/reference/trainer.h>

#include "inspect/stage_report.h"

namespace terrace {

struct StagesQuestion {
  const TrainerOptions& options;  // of one stage's ranks for a plan of stages, and of all for a comparison
  Workers& workers;
  std::optional<ReferenceMachine> machine;  // none: this one
  uint32_t ranks_per_host = 1;
  // Returns nothing if there are to be no times.
  FunctionRef<std::optional<MeasuredMachine>(const TrainConfig& config, const TrainingSetup& setup)> measure;
};

// Throws Error: config for what cannot be divided so, capacity for a stage that does not fit.
StagesReport plan_stages(const StagesQuestion& question, uint32_t stages);
// What does not fit is a part of the answer.
StagesComparison compare_stages(const StagesQuestion& question);

}  // namespace terrace
