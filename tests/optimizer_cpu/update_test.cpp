// The update kernels against the formulas in fp64, element by element.
#include <gtest/gtest.h>

#include "instruction_set_cases.h"
#include "update_problem.h"
#include "update_reference.h"

namespace terrace::optimizer_cpu_update_test {
namespace {

class UpdateKernel : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(UpdateKernel);

Reference reference_at(const UpdateProblem& problem, size_t i) {
  Reference reference;
  reference.p = problem.master(i, false);
  for (size_t k = 0; k < problem.moments.size(); ++k) reference.moment[k] = problem.moment(k, i);
  return reference;
}

// Runs `steps` steps; each element after each step is compared with one fp64 step from the numbers before it.
void expect_every_step_near_fp64(InstructionSet set, UpdateProblem& problem, uint64_t steps,
                                 std::mt19937& random) {
  const float gradient_scale = 0.37f;
  for (uint64_t step = 1; step <= steps; ++step) {
    problem.fill_gradients(random);
    std::vector<Reference> expected;
    for (size_t i = 0; i < problem.count; ++i) {
      expected.push_back(reference_at(problem, i));
      expected.back().update(problem.settings, step, gradient_scale, problem.gradient(i));
    }
    problem.update(set, make_optimizer_step(problem.settings, step, gradient_scale));
    for (size_t i = 0; i < problem.count; ++i) {
      const Reference& e = expected[i];
      const float master = problem.master(i, true);
      ASSERT_NEAR(master, e.p, e.p_bound) << "master " << i << " in step " << step;
      for (size_t k = 0; k < problem.moments.size(); ++k) {
        ASSERT_NEAR(problem.moment(k, i), e.moment[k],
                    e.stored_bound(k, number_type_of(problem.layout.moment)))
            << "moment " << k << " of " << i << " in step " << step;
      }
      ASSERT_TRUE(identical(problem.parameter(i), rounded(master, problem.layout.parameter)))
          << "parameter " << i << " in step " << step;
    }
    problem.keep_parameters();
  }
  ASSERT_TRUE(problem.guards_are_whole());
}

TEST_P(UpdateKernel, StaysNearFp64InEveryElementOfEverySizeAndType) {
  std::mt19937 random(1);
  const std::vector<OptimizerSettings> all_settings = every_settings();
  size_t next = 0;
  for (size_t count = 1; count <= 70; ++count) {
    for_every_layout([&](const Layout& layout) {
      UpdateProblem problem(all_settings[next++ % all_settings.size()], layout, count, count % 5);
      problem.fill_state(random);
      SCOPED_TRACE(problem.name());
      expect_every_step_near_fp64(GetParam(), problem, 2, random);
    });
  }
}

TEST_P(UpdateKernel, StaysNearFp64OverTwentyStepsWithEverySetting) {
  std::mt19937 random(2);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      UpdateProblem problem(settings, layout, 131, 3);
      problem.fill_state(random);
      SCOPED_TRACE(problem.name());
      expect_every_step_near_fp64(GetParam(), problem, 20, random);
    });
  }
}

TEST_P(UpdateKernel, DriftsFromAnFp64TrajectoryByNoMoreThanTheSumOfItsSteps) {
  constexpr size_t kCount = 1000;
  for (const OptimizerSettings& settings : every_settings()) {
    if (settings.kind == OptimizerKind::lion) continue;  // one sign that differs is a whole step
    std::mt19937 random(3);
    UpdateProblem problem(settings, {}, kCount, 0);
    std::vector<Reference> expected;
    std::vector<double> bound(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      problem.set_master(i, 0.02f * static_cast<float>(i) - 10);
      for (size_t k = 0; k < problem.moments.size(); ++k) problem.set_moment(k, i, 0);
      expected.push_back(reference_at(problem, i));
    }
    for (uint64_t step = 1; step <= 20; ++step) {
      problem.fill_gradients(random);
      for (size_t i = 0; i < kCount; ++i) {
        expected[i].update(settings, step, 1, problem.gradient(i));
        bound[i] += expected[i].p_bound;
      }
      problem.update(GetParam(), make_optimizer_step(settings, step));
    }
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(problem.master(i, true), expected[i].p, 4 * bound[i])
          << "element " << i << ", " << name_of(settings);
    }
  }
}

TEST_P(UpdateKernel, MovesByTheLearningRateAgainstTheGradientInTheFirstStepOfAdam) {
  UpdateProblem problem({.lr = 0.25, .eps = 0}, {.gradient = DataType::bf16}, 40, 0);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.set_master(i, 1);
    problem.set_moment(0, i, 0);
    problem.set_moment(1, i, 0);
    problem.set_gradient(i, i % 2 == 0 ? 3.0f : -1e-3f);
  }
  problem.update(GetParam(), make_optimizer_step(problem.settings, 1));
  for (size_t i = 0; i < problem.count; ++i) {
    EXPECT_NEAR(problem.master(i, true), i % 2 == 0 ? 0.75 : 1.25, 1e-6);
  }
}

TEST_P(UpdateKernel, StartsSgdsMomentumWithTheFirstGradientWhateverTheRecordHolds) {
  UpdateProblem problem({.kind = OptimizerKind::sgd, .lr = 0.5, .momentum = 0.9, .dampening = 0.5}, {}, 40,
                        0);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.set_master(i, 1);
    problem.set_moment(0, i, 7);
    problem.set_gradient(i, 0);
  }
  problem.set_gradient(0, 2);
  problem.update(GetParam(), make_optimizer_step(problem.settings, 1));
  EXPECT_EQ(problem.moment(0, 0), 2);  // the dampening has no part in it, as in torch
  EXPECT_EQ(problem.master(0, true), 0);
  EXPECT_EQ(problem.moment(0, 1), 0);
  problem.update(GetParam(), make_optimizer_step(problem.settings, 2));
  EXPECT_FLOAT_EQ(problem.moment(0, 0), 0.9f * 2 + 0.5f * 2);
}

TEST_P(UpdateKernel, LeavesAWeightWithoutGradientsWhereItIsWithLion) {
  UpdateProblem problem({.kind = OptimizerKind::lion, .lr = 0.5, .weight_decay = 0}, {}, 40, 0);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.set_master(i, 3);
    problem.set_moment(0, i, i % 2 == 0 ? 0.0f : -0.0f);
    problem.set_gradient(i, i % 3 == 0 ? 0.0f : -0.0f);
  }
  problem.update(GetParam(), make_optimizer_step(problem.settings, 1));
  for (size_t i = 0; i < problem.count; ++i) EXPECT_EQ(problem.master(i, true), 3);
}

}  // namespace
}  // namespace terrace::optimizer_cpu_update_test
