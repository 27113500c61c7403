// The plan of a pipeline: each stage is planned as a run of its own layers is (predict.h), with the order of
// its passes, and PipelineClock puts their times and messages together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/planning/pipeline_stages.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/reference_machine.h>
#include <terrace/runtime/planning/pipeline_clock.h>

namespace terrace {

// What a rank of a stage sends to other stages in a step and gets from them, by what it is.
struct StageMessages {
  uint64_t activation_bytes = 0;  // of a micro-batch, to the next stage; 0: it is the last
  uint64_t gradient_bytes = 0;    // of a micro-batch, to the stage before; 0: it is the first
  uint64_t tied_bytes = 0;  // the table's: its gradient in each micro-batch, its values after the update
  uint64_t out_bytes = 0;   // in a step, of all messages,
  uint64_t in_bytes = 0;
  uint64_t network_out_bytes = 0;  // and of those that go to other hosts,
  uint64_t network_in_bytes = 0;   // or come from there
};

struct PlannedStage {
  StagePart part;
  TrainerPlan plan;
  PlanPrediction prediction;
  StageMessages messages;
  uint32_t live_micro_batches = 1;  // that it has between forward and backward, at most
  uint64_t live_bytes = 0;          // of work memory, which they take together
  // If the prediction has times: the mean of a micro-batch.
  double forward_seconds = 0;
  double backward_seconds = 0;
};

struct PipelinePlan {
  PipelineShape shape;
  std::vector<PlannedStage> stages;
  double bubble = 0;
  uint64_t host_bytes = 0;  // what a host gets from others or sends them in a step: the most of any
  // Where all stages have times:
  bool has_times = false;
  PipelineTime time;
  double step_seconds = 0;
  bool network_binds = false;  // what is between hosts is busy for longer than any stage
  uint32_t slowest_stage = 0;
};

// What is given to it outlives it.
class PipelinePlanner {
 public:
  // `machine` is the one on which they will run; none: this one.
  PipelinePlanner(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                  const ComputeDevice* compute = nullptr,
                  const std::optional<ReferenceMachine>& machine = std::nullopt)
      : config_(config), model_(model), workers_(workers), compute_(compute), machine_(machine) {}

  // Throws Error: config for what cannot be divided so, capacity where a stage does not fit, which it names.
  // `measured` may be null: the plan then has no times.
  PipelinePlan plan(const PipelineShape& shape, const MeasuredMachine* measured) const;
  // Returns the setup of the first stage with the whole model, which measure_machine() takes.
  TrainingSetup setup_to_measure(const PipelineShape& shape) const;

 private:
  PlannedStage plan_stage(const PipelineShape& shape, const StagePart& part,
                          const MeasuredMachine* measured) const;

  const TrainConfig& config_;  // of which stages take all but what PipelineShape says
  const ModelConfig& model_;   // the whole one
  Workers& workers_;
  const ComputeDevice* const compute_;
  const std::optional<ReferenceMachine> machine_;
};

// Puts the times together anew, where stages have one rank each and the rates between hosts are others.
void retime(const TrainConfig& config, const MachineRates& rates, PipelinePlan& plan);

}  // namespace terrace
