// What a run will move, hold and take: its steps, planned until they repeat, and gone through with the rates
// of this machine. Nothing of the run's is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/runtime/train/planning/machine_rates.h>
#include <terrace/runtime/train/planning/operation_times.h>
#include <terrace/runtime/train/planning/prediction.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

// Of a model and a batch on this machine: whatever the budgets and placements.
struct MeasuredMachine {
  MachineRates rates;
  OperationTimes operations;
};
// How long, about.
struct MeasuringTime {
  double operations_seconds = 1.0;
  uint64_t rate_ns = 60'000'000;  // each
};
// Where `setup` runs on a device with memory of its own, of that too: what is measured there takes no more of
// its memory than the run will, and has given it back when this returns.
MeasuredMachine measure_machine(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                const MeasuringTime& time = {});

// What the time of a step is made of.
struct StepTimes {
  const MachineRates& rates;
  // Of a use by its key and the elements of its tensors.
  FunctionRef<OperationTime(std::string_view operation, uint64_t elements)> operation_time;
};

// `setup` is that of `config`. Updates run in `mode`, which is possible. Without `times`, and where their
// disk is not known and needed, the prediction has no times.
PlanPrediction predict(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode,
                       Workers& workers, const StepTimes* times = nullptr);

// The same in the mode that the configuration names; else in the one that `predict_update()` takes for the
// fastest by what is predicted, which is after_backward where there are no times.
PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const StepTimes* times);
// With what was measured of this machine; null: without times.
PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const MeasuredMachine* machine = nullptr);

}  // namespace terrace
