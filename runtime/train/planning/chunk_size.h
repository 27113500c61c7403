// The size of chunks with which a step takes least time. Small chunks leave more of the budgets to what is
// kept, so that fewer bytes move; large ones are fewer, and each costs some microseconds beside its bytes to
// come to the device. Which of the two weighs more is found by planning the step with several sizes.
#pragma once

#include <terrace/base/workers.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/train/planning/prediction.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

// set_up_training(), with the size of chunks that should be the fastest where the configuration names none.
// Times are those of predict_by_reference() and not of what is measured: the same configuration has the
// same chunks in a plan, in its run and in the next run, however busy the machine was. Throws as
// set_up_training() does.
TrainingSetup set_up_with_fastest_chunks(const TrainConfig& config, const ModelConfig& model,
                                         Workers& workers, const ComputeDevice* compute = nullptr);

// The step of `setup`, which is that of `config`, on a typical machine with as many threads as `workers`, and
// with a typical GPU where it runs on one. The disk is that of the paths' measured rates
// (PlacementConfig::measured_rates), else a typical one.
PlanPrediction predict_by_reference(const TrainConfig& config, const TrainingSetup& setup, Workers& workers);

}  // namespace terrace
