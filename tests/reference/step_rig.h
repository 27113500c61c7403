// What the classes of a step work on: the offloader of a tiny model with its first values, and its data,
// without a Trainer.
#pragma once

#include <memory>
#include <vector>

#include <terrace/reference/micro_batches.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/run_identity.h>
#include <terrace/reference/run_position.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/reference/step_updates.h>
#include <terrace/runtime/budget/between_steps.h>

#include "reference/trainer_rig.h"
#include "support/offloaders.h"

namespace terrace::trainer_tests {

class StepRig {
 public:
  explicit StepRig(const RunOptions& run)
      : options(options_of(run)),
        data(TrainerRun::tokens(run.data), {kContext, options.config.terrace.seed, run.validation_fraction}),
        setup(set_up_training(options.config, options.model, workers)),
        space(setup.tensors, setup.plan.chunk_elements),
        compute(begin_computing(setup.compute, setup.offload.device_budget_bytes, false, workers,
                                processor_products(options.config))),
        offloader(space, setup.offload, setup.dry.trace, compute->device(), workers, log),
        between(offloader) {
    offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      setup.model->initial_values(tensor, first, values);
    });
  }

  MicroBatches micro_batches() {
    return {*setup.model, data, {compute->ops(), *dry_ops}, offloader, options.config.batch, ranks, clock};
  }
  RunPosition run_position() const {
    return {run_identity(options.config, options.steps, *setup.model, space, data), space.chunk_elements(),
            options.config.fp16};
  }
  StepUpdates updates(RunPosition& state) {
    return {offloader, state, between, options.config, options.steps, ranks, log};
  }
  std::vector<std::byte> state_bytes() { return testing::state_of(offloader, space); }

  TrainerOptions options;
  SteadyClock clock;
  Workers workers{1};
  MemoryLog log;
  TrainingData data;
  TrainingSetup setup;
  FlatSpace space;
  std::unique_ptr<Computing> compute;
  const std::unique_ptr<const Ops> dry_ops = make_dry_ops(nullptr, workers);
  Offloader offloader;
  const WatchedVotes ranks{RankVotes(nullptr), offloader.watch()};
  BetweenSteps between;
};

}  // namespace terrace::trainer_tests
