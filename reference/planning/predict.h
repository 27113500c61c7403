// The bytes, memory and time of a run, predicted: its steps are planned until they repeat, and timed with the
// rates of this machine. Nothing of the run is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/reference/planning/machine_rates.h>
#include <terrace/reference/planning/operation_times.h>
#include <terrace/reference/planning/reference_machine.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

// The measurements of a model and a batch on this machine, valid for all budgets and placements.
struct MeasuredMachine {
  MachineRates rates;
  OperationTimes operations;

  // Ranks of one host that together have more threads than it has processors take turns on them, each with
  // `share` of a processor for a thread. Everything that processors do then takes 1 / share times as long as
  // one rank alone measured it. Drives, networks and devices with memory of their own stay as fast.
  void divide_processors(double share);
};
// The approximate time to measure.
struct MeasuringTime {
  double operations_seconds = 1.0;
  uint64_t rate_ns = 60'000'000;  // per rate
  double given_flops = 0;         // of operations, which are not measured then
};
// Also measures the device on which `setup` runs, if it has memory of its own. That takes no more of its
// memory than the run will, and gives it back before the function returns.
MeasuredMachine measure_machine(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                const MeasuringTime& time = {});

// Assumes the rates of `machine`, and those of its operations unless `given_flops` are above 0.
MeasuredMachine assume_machine(const TrainConfig& config, const TrainingSetup& setup,
                               const ReferenceMachine& machine, double given_flops = 0);

// The inputs of the time of a step.
struct StepTimes {
  const MachineRates& rates;
  // Returns the time of a use by its key and the elements of its tensors.
  FunctionRef<OperationTime(std::string_view operation, uint64_t elements)> operation_time;
};

// What is planned. A commit takes about as long to plan as a step.
enum class PlanScope : uint8_t { steps, steps_and_commits };

// `setup` belongs to `config`. Updates run in `mode`, which is possible. The prediction has no times without
// `times`, or if it needs a drive whose rates are unknown.
PlanPrediction predict(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode,
                       Workers& workers, const StepTimes* times = nullptr,
                       PlanScope scope = PlanScope::steps_and_commits);

// Returns whether the memory of this plan suffices for updates in `mode`.
bool is_possible(UpdateMode mode, const TrainingSetup& setup);

// Predicts the mode that the configuration names, else the mode that predict_update() takes for the fastest
// by the predicted times; without times that is after_backward.
PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const StepTimes* times, PlanScope scope = PlanScope::steps_and_commits);
// Predicts with the measurements of this machine; null: without times.
PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const MeasuredMachine* machine = nullptr);

}  // namespace terrace
