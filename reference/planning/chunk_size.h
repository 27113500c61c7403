// The size of chunks with which a step takes the least time. Small chunks leave more of the budgets to
// resident data, so that fewer bytes move. Large chunks are fewer, and each costs some microseconds beside
// its bytes to come to the device. The step is planned with several sizes to find which effect is larger.
#pragma once

#include <optional>

#include <terrace/base/workers.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/planning/reference_machine.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/planning/planning_progress.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

// Does set_up_training() with the size of chunks that should be the fastest if the configuration names none.
// Times are those of predict_by_reference() and not measured ones: the same configuration has the same chunks
// in a plan, in its run and in the next run, however busy the machine was. `progress` is told how far it has
// come; null: nobody is. `machine` is the one on which it will run; none: reference_machine() of this one.
// Throws as set_up_training() does.
TrainingSetup set_up_with_fastest_chunks(const TrainConfig& config, const ModelConfig& model,
                                         Workers& workers, const ComputeDevice* compute = nullptr,
                                         PlanningProgress* progress = nullptr,
                                         const std::optional<ReferenceMachine>& machine = std::nullopt);

// Predicts the step of `setup`, which belongs to `config`, on a typical machine. Updates run in `mode` if the
// plan has the memory for it; without it, in the mode that predict_run() takes.
PlanPrediction predict_by_reference(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                    const ReferenceMachine& machine,
                                    std::optional<UpdateMode> mode = std::nullopt);

}  // namespace terrace
