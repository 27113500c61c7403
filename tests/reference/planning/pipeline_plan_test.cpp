// Plans of pipelines: what each stage has, moves and sends, to the byte.
#include <terrace/reference/planning/pipeline_plan.h>

#include <gtest/gtest.h>

#include <numeric>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/planning/dry_training.h>

#include "reference/trainer_rig.h"

namespace terrace::pipeline_plan_test {
namespace {

using namespace trainer_tests;

TEST(BalancedBounds, AreThoseOfPipelineModule) {
  const auto bounds = [](std::vector<uint64_t> weights, uint32_t parts) {
    return balanced_bounds(weights, parts);
  };
  using Bounds = std::vector<uint32_t>;
  EXPECT_EQ(bounds({5, 1, 1, 1, 1, 5}, 3), (Bounds{0, 1, 5, 6}));
  EXPECT_EQ(bounds(std::vector<uint64_t>(10, 1), 4), (Bounds{0, 2, 4, 7, 10}));
  EXPECT_EQ(bounds({10, 3, 3, 3, 3, 0, 10}, 3), (Bounds{0, 1, 5, 7}));
  EXPECT_EQ(bounds({0, 0, 7, 0, 0}, 3), (Bounds{0, 1, 2, 5}));
  std::vector<uint64_t> tied(15, 7);
  tied.front() = tied.back() = 38, tied[13] = 0;
  EXPECT_EQ(bounds(tied, 4), (Bounds{0, 1, 7, 13, 15}));
}

struct Planned {
  explicit Planned(RunOptions run, uint32_t micro_batches = 4) : options(options_of(run)) {
    options.config.batch.micro_batches = micro_batches;
    options.config.zero_stage = 3;
  }
  PipelinePlan plan(uint32_t stages, uint32_t data_ranks = 1) {
    const PipelineShape shape{stages, data_ranks, 1, options.config.batch.micro_batches / data_ranks};
    return PipelinePlanner(options.config, options.model, workers).plan(shape, nullptr);
  }
  TrainerOptions options;
  Workers workers{1};
};

RunOptions in_host_memory(const std::string& preset = "gpt2", uint32_t layers = 4) {
  RunOptions run;
  run.parameters = "cpu";
  run.precision = "true";
  run.preset = preset;
  run.layers = layers;
  return run;
}

const TierUse* use_of(const PlanPrediction& prediction, const std::string& purpose) {
  for (const PredictedTier& tier : prediction.tiers) {
    for (const TierUse& use : tier.uses) {
      if (use.purpose == purpose) return &use;
    }
  }
  return nullptr;
}

// One stage goes forward and backward with each micro-batch as a run does that is none.
TEST(PipelinePlan, OfOneStageIsThatOfTheRun) {
  for (const bool stores : {false, true}) {
    const ScratchFolder folder;
    RunOptions run = in_host_memory();
    if (stores) run.nvme = folder.path();
    Planned planned(run);
    const PipelinePlan plan = planned.plan(1);
    const TrainingSetup whole =
        set_up_training(planned.options.config, planned.options.model, planned.workers);
    const PlanPrediction prediction = predict_run(planned.options.config, whole, planned.workers);
    EXPECT_TRUE(moves_the_same(plan.stages.front().prediction.step, prediction.step));
    EXPECT_EQ(plan.stages.front().plan.parameter_count, whole.plan.parameter_count);
    EXPECT_EQ(plan.stages.front().prediction.tiers[1].peak_bytes, prediction.tiers[1].peak_bytes);
    EXPECT_EQ(plan.host_bytes, 0u);
    EXPECT_EQ(plan.stages.front().live_micro_batches, 1u);
  }
}

TEST(PipelinePlan, HasEveryParameterInOneStageAndTheCopyOfATable) {
  for (const char* preset : {"gpt2", "llama-3.2-1b"}) {
    Planned planned(in_host_memory(preset));
    const ModelConfig& model = planned.options.model;
    const uint64_t all = make_model(model, model_options(planned.options.config))->parameter_count();
    const uint64_t table = uint64_t{model.vocabulary} * model.width;
    for (const uint32_t stages : {2u, 3u, model.layers + 3}) {
      SCOPED_TRACE(stages);
      uint64_t parameters = 0, trained = 0;
      for (const PlannedStage& stage : planned.plan(stages).stages) {
        parameters += stage.plan.parameter_count;
        trained += stage.plan.trainable_count;
      }
      ASSERT_TRUE(model.tied_embeddings);
      EXPECT_EQ(parameters, all + table);
      EXPECT_EQ(trained, all);
    }
  }
}

// Widths, lengths and the numbers of micro-batches say what crosses: a head of 4096 bytes with each message.
TEST(PipelinePlan, HasTheBytesThatCross) {
  constexpr uint64_t kHead = 4096, kMicroBatches = 4;
  Planned planned(in_host_memory(), kMicroBatches);
  const ModelConfig& model = planned.options.model;
  const uint64_t activation =
      uint64_t{planned.options.config.batch.micro_batch_size} * model.context * model.width * 2;
  const uint64_t table = uint64_t{model.vocabulary} * model.width * 2;
  const uint64_t messages = kMicroBatches * (activation + kHead), tied = kMicroBatches * (table + kHead);
  const PipelinePlan plan = planned.plan(3);
  const StageMessages &first = plan.stages[0].messages, &middle = plan.stages[1].messages,
                      &last = plan.stages[2].messages;
  EXPECT_EQ(first.activation_bytes, activation);
  EXPECT_EQ(first.gradient_bytes, 0u);
  EXPECT_EQ(first.out_bytes, messages + table + kHead);
  EXPECT_EQ(first.in_bytes, messages + tied);
  EXPECT_EQ(middle.out_bytes, 2 * messages);
  EXPECT_EQ(middle.in_bytes, 2 * messages);
  EXPECT_EQ(middle.tied_bytes, 0u);
  EXPECT_EQ(last.activation_bytes, 0u);
  EXPECT_EQ(last.gradient_bytes, activation);
  EXPECT_EQ(last.out_bytes, messages + tied);
  EXPECT_EQ(last.network_in_bytes, messages + table + kHead);
  EXPECT_EQ(plan.host_bytes, std::max(2 * messages, messages + tied));
  EXPECT_DOUBLE_EQ(plan.bubble, 2.0 / 6);
}

// A stage of blocks keeps of each live micro-batch the inputs of its blocks and what it has sent.
TEST(PipelinePlan, KeepsAsManyMicroBatchesAsStagesAreToCome) {
  Planned planned(in_host_memory("gpt2", 9), 3);
  const ModelConfig& model = planned.options.model;
  const PipelinePlan plan = planned.plan(4);
  const uint64_t row =
      uint64_t{planned.options.config.batch.micro_batch_size} * model.context * model.width * sizeof(float);
  std::vector<uint32_t> live;
  for (const PlannedStage& stage : plan.stages) {
    live.push_back(stage.live_micro_batches);
    const ModelPart& part = *stage.part.model.part;
    if (part.has_norm || part.has_head) continue;
    EXPECT_EQ(stage.live_bytes, stage.live_micro_batches * row * (stage.part.model.layers + 1));
  }
  EXPECT_EQ(live, (std::vector<uint32_t>{3, 3, 2, 1}));
}

TEST(PipelinePlan, OfSeveralRanksDividesTheStatesOfAStage) {
  const auto state_bytes = [](const PipelinePlan& plan, size_t stage) {
    const TierUse* const states = use_of(plan.stages[stage].prediction, "optimizer states");
    return states == nullptr ? uint64_t{0} : states->bytes;
  };
  RunOptions run = in_host_memory();
  run.chunk_elements = "65536";  // of which both ranks have tiles
  Planned planned(run);
  const PipelinePlan one = planned.plan(2), two = planned.plan(2, 2);
  for (size_t s = 0; s < 2; ++s) {
    SCOPED_TRACE(s);
    EXPECT_GT(state_bytes(one, s), 0u);
    EXPECT_LT(state_bytes(two, s), state_bytes(one, s));
    EXPECT_EQ(one.stages[s].prediction.step.exchange_out_bytes, 0u);
    EXPECT_GT(two.stages[s].prediction.step.exchange_out_bytes, 0u);
    EXPECT_EQ(two.stages[s].messages.activation_bytes, one.stages[s].messages.activation_bytes);
  }
  EXPECT_EQ(two.shape.micro_batches, 2u);
}

// Host memory is what the stage that needs most takes at least. Too little is told of the stage.
PipelinePlan plan_with_least_memory(Planned& planned, uint32_t stages) {
  for (;;) {
    try {
      return planned.plan(stages);
    } catch (const ShortageError& shortage) {
      EXPECT_TRUE(shortage.parts().reason.starts_with("stage ")) << shortage.parts().reason;
      planned.options.config.terrace.host_memory_bytes = shortage.tiers().front().needed_bytes;
    }
  }
}

TEST(PipelinePlan, RunsOnNvmeAndWithoutCheckpoints) {
  const ScratchFolder folder;
  RunOptions run = in_host_memory();
  run.nvme = folder.path();
  Planned planned(run);
  planned.options.config.placement.parameters = Placement::nvme;
  planned.options.config.placement.parameter_paths = planned.options.config.placement.state_paths;
  planned.options.config.terrace.host_memory_bytes = 1;
  const PipelinePlan plan = plan_with_least_memory(planned, 3);
  uint64_t read = 0, kept = 0;
  for (const PlannedStage& stage : plan.stages) {
    read += stage.prediction.step.record_read_bytes + stage.prediction.step.param_read_bytes;
    kept += stage.live_bytes;
  }
  EXPECT_GT(read, 0u);
  planned.options.config.terrace.host_memory_bytes = 64 * kMiB;
  planned.options.config.activations.offload = ActivationOffload::cpu;
  const PlannedStage first = planned.plan(3).stages.front();
  EXPECT_GT(first.prediction.step.activation_d2h_bytes, 0u);
  EXPECT_EQ(first.prediction.step.activation_d2h_bytes, first.prediction.step.activation_h2d_bytes);
  planned.options.config.activations = {.checkpoint = false};
  uint64_t all = 0;
  for (const PlannedStage& stage : planned.plan(3).stages) all += stage.live_bytes;
  EXPECT_GT(all, kept);
}

TEST(PipelinePlan, OfMoreStagesThanLayersIsRefused) {
  Planned planned(in_host_memory());
  try {
    planned.plan(planned.options.model.layers + 4);
    FAIL() << "it was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_EQ(error.parts().subject.in(Door::cpp), "8 stages");
  }
}

// Every pass is there, and what a stage does not wait for is its own time.
TEST(PipelinePlan, HasTheTimesOfEveryPass) {
  Planned planned(in_host_memory(), 5);
  const PipelineShape shape{3, 1, 1, 5};
  const PipelinePlanner planner(planned.options.config, planned.options.model, planned.workers);
  MeasuredMachine machine = assume_machine(planned.options.config, planner.setup_to_measure(shape),
                                           {.threads = 1, .has_gpu = false}, 1e9);
  machine.rates.network_bytes = 1e6;
  PipelinePlan plan = planner.plan(shape, &machine);
  ASSERT_TRUE(plan.has_times);
  for (const PlannedStage& stage : plan.stages) {
    const PlanPrediction& prediction = stage.prediction;
    EXPECT_EQ(prediction.pass_seconds.size(), 10u);
    EXPECT_NEAR(std::accumulate(prediction.pass_seconds.begin(), prediction.pass_seconds.end(), 0.0),
                prediction.forward_seconds + prediction.backward_seconds, 1e-9);
    EXPECT_GT(stage.backward_seconds, stage.forward_seconds);
  }
  const double slow = plan.step_seconds;
  EXPECT_GE(slow, plan.time.line_seconds);
  machine.rates.network_bytes = 1e3;
  retime(planned.options.config, machine.rates, plan);
  EXPECT_GT(plan.step_seconds, slow);
  EXPECT_TRUE(plan.network_binds);
}

}  // namespace
}  // namespace terrace::pipeline_plan_test
