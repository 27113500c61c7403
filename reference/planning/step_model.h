// The time of planned steps. The model goes through the events that a dry run has recorded, in their order,
// with a clock of its own: the step thread computes and waits, each link and the drives do one thing after
// another at their rates, and an update that runs beside the step thread is a second line of work. It decides
// nothing: the record says what is moved, when it is asked for and what waits for it.
//
// If a device computes beside the host (MachineRates::device), operations are a line of work of their own:
// the step thread only queues them and goes on to its next wait. Copies of a slot run behind the operations
// that used it. A step then ends with the later of the two lines, and its parts are those of the later line:
// work or waits of one line cost no time while the other still computes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <terrace/offload/dry/step_record.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/setup/training_setup.h>

namespace terrace {

// One planned step.
struct PlannedStep {
  std::deque<RecordedEvent> events;
  OffloadCounters moved;
  std::vector<ChunkId> update_order;  // order of the update that the step's end began
};

struct StepSeconds {
  double forward = 0;
  double backward = 0;
  double update = 0;
  double total() const { return forward + backward + update; }
  TimeParts parts;
  double copy_in_busy = 0;
  double copy_out_busy = 0;
  double disk_busy = 0;
  RankUse ranks;
  std::vector<double>
      passes;  // of a stage of a pipeline: each pass, in the order in which they are gone through
  // Set if a device computes beside the host: the computing time of each.
  double device_busy = 0;
  double processor_busy = 0;
};

struct StepModelInput {
  const TrainConfig& config;
  const TrainingSetup& setup;
  UpdateMode mode = UpdateMode::after_backward;
  const StepTimes& times;
};

class StepModel {
 public:
  // Everything that the input refers to outlives the model.
  explicit StepModel(const StepModelInput& input);
  ~StepModel();
  // Returns the time of the step that follows the steps given before; `step` is not needed afterwards.
  StepSeconds next(const PlannedStep& step);

 private:
  class Replay;
  std::unique_ptr<Replay> replay_;
};

}  // namespace terrace
