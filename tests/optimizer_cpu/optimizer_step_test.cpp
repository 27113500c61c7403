// The constants of one step, and what is refused.
#include <gtest/gtest.h>

#include <limits>

#include "update_problem.h"

namespace terrace::optimizer_step_test {
namespace {

TEST(OptimizerStep, RoundsConstantsComputedInDoubleOnce) {
  const OptimizerStep step = make_optimizer_step({.weight_decay = 0.01}, 1000, 0.125f);
  EXPECT_EQ(step.gradient_scale, 0.125f);
  EXPECT_EQ(step.one_minus_beta2, static_cast<float>(1 - 0.999));
  EXPECT_EQ(step.decay, static_cast<float>(1e-3 * 0.01));
  EXPECT_EQ(step.step_size, static_cast<float>(1e-3 / (1 - std::pow(0.9, 1000.0))));
  EXPECT_EQ(step.inverse_root, static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, 1000.0))));
  EXPECT_TRUE(step.decoupled_decay);
}

TEST(OptimizerStep, LeavesTheLearningRateAloneWithoutBiasCorrection) {
  const OptimizerStep step = make_optimizer_step(
      {.lr = 0.5, .weight_decay = 0.25, .adamw_mode = false, .bias_correction = false}, 1);
  EXPECT_EQ(step.step_size, 0.5f);
  EXPECT_EQ(step.inverse_root, 1.0f);
  EXPECT_EQ(step.decay, 0.25f);
  EXPECT_FALSE(step.decoupled_decay);
}

TEST(OptimizerStep, TakesNothingOfAdamInOtherOptimizers) {
  for (const OptimizerKind kind : {OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd}) {
    const OptimizerStep step = make_optimizer_step({.kind = kind, .lr = 0.5, .weight_decay = 0.25}, 3);
    EXPECT_EQ(step.step_size, 0.5f);
    EXPECT_EQ(step.decay, kind == OptimizerKind::lion ? 0.125f : 0.25f);
    EXPECT_FALSE(step.has_momentum);
  }
  const OptimizerStep step =
      make_optimizer_step({.kind = OptimizerKind::sgd, .momentum = 0.9, .dampening = 0.25}, 2);
  EXPECT_EQ(step.momentum, 0.9f);
  EXPECT_EQ(step.one_minus_dampening, 0.75f);
  EXPECT_FALSE(step.first);
}

TEST(OptimizerStep, KnowsTheMomentsOfEveryOptimizer) {
  EXPECT_EQ(moment_count(OptimizerKind::adam), 2u);
  EXPECT_EQ(moment_count(OptimizerKind::adagrad), 1u);
  EXPECT_EQ(moment_count(OptimizerKind::lion), 1u);
  EXPECT_EQ(moment_count(OptimizerKind::sgd), 0u);
  EXPECT_EQ(moment_count(OptimizerKind::sgd, 0.5), 1u);
}

TEST(OptimizerStepDeathTest, RefusesMeaninglessSettings) {
  EXPECT_DEATH(make_optimizer_step({}, 0), "count from 1");
  EXPECT_DEATH(make_optimizer_step({.beta1 = 1.0}, 1), "betas are 1.0");
  EXPECT_DEATH(make_optimizer_step({.eps = -1.0}, 1), "eps is -1");
  EXPECT_DEATH(make_optimizer_step({.lr = std::numeric_limits<double>::quiet_NaN()}, 1), "lr is");
  EXPECT_DEATH(make_optimizer_step({.momentum = -1}, 1), "momentum is -1");
  EXPECT_DEATH(make_optimizer_step({.nesterov = true}, 1), "nesterov with momentum 0");
}

TEST(UpdateDeathTest, RefusesParametersThatOverlapGradientsOfAnotherSize) {
  UpdateProblem problem(
      {}, {DataType::fp32, DataType::bf16, MomentType::fp32, MasterForm::whole, Output::over_gradients}, 4,
      0);
  EXPECT_DEATH(problem.update(InstructionSet::scalar, make_optimizer_step({}, 1)), "overlap");
}

TEST(UpdateDeathTest, RefusesParametersThatOverlapGradientsOfTheirSizeElsewhere) {
  float master = 0, moment = 0;
  uint16_t both[2] = {};
  auto* const bytes = reinterpret_cast<std::byte*>(both);
  testing::ArrayRun run{.layout = {MasterForm::whole, 1, MomentType::fp32},
                        .master = reinterpret_cast<std::byte*>(&master),
                        .moments = {reinterpret_cast<std::byte*>(&moment), nullptr},
                        .gradients = bytes,
                        .gradient_type = DataType::bf16,
                        .parameters = bytes + 1,
                        .parameter_type = DataType::bf16,
                        .element_count = 1};
  EXPECT_DEATH(testing::update_arrays(InstructionSet::scalar,
                                      make_optimizer_step({.kind = OptimizerKind::lion}, 1), run),
               "overlap");
}

TEST(UpdateDeathTest, RefusesRecordsOfAnotherOptimizer) {
  UpdateProblem problem({.kind = OptimizerKind::lion}, {}, 4, 0);
  EXPECT_DEATH(problem.update(InstructionSet::scalar, make_optimizer_step({}, 1)),
               "2 moments on records of 1");
}

}  // namespace
}  // namespace terrace::optimizer_step_test
