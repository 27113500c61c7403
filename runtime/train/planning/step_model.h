// How long planned steps take. It goes through what a dry run has recorded, in its order, with a
// clock of its own: the step thread computes and waits, each link and the disk do one thing after another at
// their rates, and an update that runs beside the step thread is a second line of work. It decides nothing:
// what is moved, when it is asked for and what waits for it is the record's.
//
// Where a device computes beside the host (MachineRates::device), operations are a line of work of their own:
// the step thread only asks for them, and goes on to what it has to wait for. Copies of a slot come behind
// the operations that used it. A step is then over when the later one of the two is, and its parts are what
// the later one does: what one of them does or waits for while the other one still computes takes no time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <terrace/offload/dry/step_record.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/runtime/train/planning/predict.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

// One step, as it was planned.
struct PlannedStep {
  std::deque<RecordedEvent> events;
  OffloadCounters moved;
  std::vector<ChunkId> update_order;  // of the update that its end began
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
  // Where a device computes beside the host: what each of them computes.
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
  // What the input refers to outlives the model.
  explicit StepModel(const StepModelInput& input);
  ~StepModel();
  // The step after those before, which set the scene; and is not needed any more.
  StepSeconds next(const PlannedStep& step);

 private:
  class Replay;
  std::unique_ptr<Replay> replay_;
};

}  // namespace terrace
