// The prediction of a run of `terrace train`, made before anything is allocated and compared at the end with
// what was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/planning/prediction.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"

namespace terrace {

// Returns a prediction, without times if the run is too short for measuring them. If the run cannot be
// predicted, a warning says so and nothing is returned.
std::optional<PlanPrediction> predict_training(const TrainerOptions& options, const TrainingSetup& setup,
                                               Console& console);

// PredictedSteps: the measured steps that a prediction is about: those that repeat, in its mode of the
// update.
class PredictedSteps {
 public:
  void begin(std::optional<PlanPrediction> prediction) { prediction_ = std::move(prediction); }
  void add(const StepReport& report);

  // Returns an empty text without a prediction or such a step. `tiers` are those of the run.
  std::string text(const std::vector<TierSummary>& tiers) const;
  // Writes the member "prediction": an object, or null.
  void write(JsonWriter& json) const;

 private:
  struct Row {
    std::string name;
    std::string key;
    double predicted = 0;
    double measured = 0;
  };
  std::vector<Row> link_rows() const;
  double median_seconds() const;

  static constexpr size_t kMostTimes = 4096;  // the median is taken of at most so many times
  std::optional<PlanPrediction> prediction_;
  uint64_t seen_ = 0;
  uint64_t steps_ = 0;
  OffloadCounters moved_;
  std::vector<double> seconds_;
};

}  // namespace terrace
