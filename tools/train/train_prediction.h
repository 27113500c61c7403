// The prediction of a run of `terrace train`, made before anything is allocated and compared at the end with
// what was measured.
#pragma once

#include <optional>
#include <string>

#include <terrace/base/text/json_writer.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/planning/prediction.h>

#include "console.h"

namespace terrace {

// Returns a prediction, without times if the run is too short for measuring them. If the run cannot be
// predicted, a warning says so and nothing is returned.
std::optional<PlanPrediction> predict_training(const TrainerOptions& options, const TrainingSetup& setup,
                                               Console& console);

// The prediction beside what was measured of the steps that it is about, as a table. Returns an empty text
// without a prediction or such a step.
std::string prediction_text(const RunRecord& run);
// Writes the member "prediction": an object, or null.
void write_prediction(JsonWriter& json, const RunRecord& run);

}  // namespace terrace
