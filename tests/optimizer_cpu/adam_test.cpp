// The Adam kernels against the formula in fp64, element by element.
#include <terrace/optimizer_cpu/optimizer.h>

#include <gtest/gtest.h>

#include <limits>

#include "adam_problem.h"
#include "instruction_set_cases.h"

namespace terrace {
namespace {

constexpr double kHalfUlp = 0x1p-24;  // the largest relative error of one fp32 rounding

// One element in fp64, as torch.optim.AdamW and Adam write it, and how far fp32 may be from it.
struct Reference {
  double p, m, v;
  double p_bound = 0, m_bound = 0, v_bound = 0;

  // Each bound counts the fp32 roundings on the way, those of the constants included, and weighs them with
  // the magnitudes they apply to.
  void update(const OptimizerSettings& s, uint64_t step, double gradient_scale, double gradient) {
    double g = gradient * gradient_scale;
    double g_bound = 2 * kHalfUlp * std::abs(g);
    const double before = p;
    if (s.adamw_mode) {
      p = p * (1 - s.lr * s.weight_decay);
    } else {
      g_bound += 3 * kHalfUlp * (std::abs(g) + std::abs(s.weight_decay * p));
      g += s.weight_decay * p;
    }
    m_bound = 4 * kHalfUlp * (std::abs(s.beta1 * m) + std::abs((1 - s.beta1) * g)) + (1 - s.beta1) * g_bound;
    v_bound =
        5 * kHalfUlp * (s.beta2 * v + (1 - s.beta2) * g * g) + (1 - s.beta2) * 2.1 * std::abs(g) * g_bound;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double correction1 = s.bias_correction ? 1 - std::pow(s.beta1, static_cast<double>(step)) : 1;
    const double correction2 = s.bias_correction ? 1 - std::pow(s.beta2, static_cast<double>(step)) : 1;
    const double denominator = std::sqrt(v) / std::sqrt(correction2) + s.eps;
    const double move = s.lr / correction1 * m / denominator;
    p -= move;
    const double move_bound = 8 * kHalfUlp * std::abs(move) + s.lr / correction1 * m_bound / denominator +
                              std::abs(move) * (v > 0 ? v_bound / v : 0);
    p_bound = 3 * kHalfUlp * (std::abs(before) * (s.lr * s.weight_decay + 1) + std::abs(move)) + move_bound;
  }
};

class AdamKernel : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(AdamKernel);

// Runs `steps` steps; each element after each step is compared with one fp64 step from the fp32 numbers
// before it.
void expect_every_step_near_fp64(InstructionSet set, AdamProblem& problem, const OptimizerSettings& settings,
                                 int steps, std::mt19937& random) {
  const float gradient_scale = 0.37f;
  for (int step = 1; step <= steps; ++step) {
    problem.fill_gradients(random);
    std::vector<Reference> expected;
    for (size_t i = 0; i < problem.count; ++i) {
      const size_t at = problem.shift + i;
      expected.push_back({problem.master[at], problem.exp_avg[at], problem.exp_avg_sq[at]});
      expected.back().update(settings, static_cast<uint64_t>(step), gradient_scale, problem.gradient(i));
    }
    problem.update(set, make_optimizer_step(settings, static_cast<uint64_t>(step), gradient_scale));
    for (size_t i = 0; i < problem.count; ++i) {
      const size_t at = problem.shift + i;
      const Reference& e = expected[i];
      ASSERT_NEAR(problem.master[at], e.p, e.p_bound) << "master " << i << " in step " << step;
      ASSERT_NEAR(problem.exp_avg[at], e.m, e.m_bound) << "exp_avg " << i << " in step " << step;
      ASSERT_NEAR(problem.exp_avg_sq[at], e.v, e.v_bound) << "exp_avg_sq " << i << " in step " << step;
      ASSERT_TRUE(same(problem.parameter(i), rounded(problem.master[at], problem.parameter_type)))
          << "parameter " << i << " in step " << step;
    }
  }
  ASSERT_TRUE(problem.guards_are_whole());
}

TEST_P(AdamKernel, StaysNearFp64InEveryElementOfEverySizeAndType) {
  std::mt19937 random(1);
  const std::vector<OptimizerSettings> all_settings = every_settings();
  size_t next = 0;
  for (size_t count = 1; count <= 70; ++count) {
    for_every_layout([&](DataType gradient, DataType parameter, bool over_gradients) {
      const OptimizerSettings& settings = all_settings[next++ % all_settings.size()];
      AdamProblem problem(count, gradient, parameter, count % 4, over_gradients);
      problem.fill_state(random);
      SCOPED_TRACE(problem.name() + ", " + name_of(settings));
      expect_every_step_near_fp64(GetParam(), problem, settings, 2, random);
    });
  }
}

TEST_P(AdamKernel, StaysNearFp64OverTwentyStepsWithEverySetting) {
  std::mt19937 random(2);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](DataType gradient, DataType parameter, bool over_gradients) {
      AdamProblem problem(131, gradient, parameter, 3, over_gradients);
      problem.fill_state(random);
      SCOPED_TRACE(problem.name() + ", " + name_of(settings));
      expect_every_step_near_fp64(GetParam(), problem, settings, 20, random);
    });
  }
}

TEST_P(AdamKernel, DriftsFromAnFp64TrajectoryByNoMoreThanTheSumOfItsSteps) {
  constexpr size_t kCount = 1000;
  for (const OptimizerSettings& settings : every_settings()) {
    std::mt19937 random(3);
    AdamProblem problem(kCount, DataType::fp32, DataType::fp32, 0, false);
    std::vector<Reference> expected(kCount, Reference{});
    std::vector<double> bound(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      problem.master[i] = 0.02f * static_cast<float>(i) - 10;
      problem.exp_avg[i] = problem.exp_avg_sq[i] = 0;
      expected[i].p = problem.master[i];
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
      ASSERT_NEAR(problem.master[i], expected[i].p, 4 * bound[i])
          << "element " << i << ", " << name_of(settings);
    }
  }
}

TEST_P(AdamKernel, MovesByTheLearningRateAgainstTheGradientInTheFirstStep) {
  AdamProblem problem(40, DataType::bf16, DataType::fp32, 0, false);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.master[i] = 1;
    problem.exp_avg[i] = problem.exp_avg_sq[i] = 0;
    problem.set_gradient(i, i % 2 == 0 ? 3.0f : -1e-3f);
  }
  problem.update(GetParam(), make_optimizer_step({.lr = 0.25, .eps = 0}, 1));
  for (size_t i = 0; i < problem.count; ++i) EXPECT_NEAR(problem.master[i], i % 2 == 0 ? 0.75 : 1.25, 1e-6);
}

TEST_P(AdamKernel, KeepsDenormals) {
  const float tiny = 3e-40f;  // below the smallest normal number, 1.2e-38
  AdamProblem problem(33, DataType::fp32, DataType::bf16, 1, false);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.master[problem.shift + i] = tiny;
    problem.exp_avg[problem.shift + i] = 0;
    problem.exp_avg_sq[problem.shift + i] = tiny;
    problem.set_gradient(i, tiny);
  }
  problem.update(GetParam(), make_optimizer_step({.lr = 0, .beta1 = 0, .beta2 = 0.5, .eps = 1}, 1));
  for (size_t i = 0; i < problem.count; ++i) {
    EXPECT_EQ(problem.exp_avg[problem.shift + i], tiny);
    EXPECT_EQ(problem.exp_avg_sq[problem.shift + i], tiny / 2);
    EXPECT_EQ(problem.master[problem.shift + i], tiny);
    EXPECT_EQ(problem.parameter(i), to_float(to_bf16(tiny)));
    EXPECT_NE(problem.parameter(i), 0);
  }
}

TEST_P(AdamKernel, TurnsAnInfiniteOrNanGradientIntoANanParameterAndTouchesNoNeighbour) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for_every_layout([&](DataType gradient, DataType parameter, bool over_gradients) {
    for (const float bad : {infinity, -infinity, nan}) {
      std::mt19937 random(4);
      AdamProblem clean(50, gradient, parameter, 2, over_gradients);
      clean.fill_state(random);
      clean.fill_gradients(random);
      AdamProblem problem = clean;
      for (const size_t i : {size_t{0}, size_t{17}, size_t{49}}) problem.set_gradient(i, bad);
      const OptimizerStep step = make_optimizer_step({.weight_decay = 0.1}, 3);
      clean.update(GetParam(), step);
      problem.update(GetParam(), step);
      for (size_t i = 0; i < 50; ++i) {
        if (i == 0 || i == 17 || i == 49) {
          EXPECT_TRUE(std::isnan(problem.master[2 + i]));
          EXPECT_TRUE(std::isnan(problem.parameter(i)));
          EXPECT_TRUE(same(problem.exp_avg[2 + i], bad));
          EXPECT_TRUE(same(problem.exp_avg_sq[2 + i], std::abs(bad)));
        } else {
          EXPECT_TRUE(same(problem.master[2 + i], clean.master[2 + i]))
              << problem.name() << ", element " << i;
        }
      }
    }
  });
}

TEST_P(AdamKernel, SaturatesAHugeButFiniteGradientWithoutMovingTheParameter) {
  AdamProblem problem(20, DataType::fp32, DataType::fp32, 0, false);
  for (size_t i = 0; i < problem.count; ++i) {
    problem.master[i] = 1;
    problem.exp_avg[i] = problem.exp_avg_sq[i] = 0;
    problem.set_gradient(i, 1e30f);
  }
  problem.update(GetParam(), make_optimizer_step({.lr = 0.25}, 1));
  for (size_t i = 0; i < problem.count; ++i) {
    EXPECT_TRUE(std::isinf(problem.exp_avg_sq[i]));  // its square overflows, as in every fp32 Adam
    EXPECT_EQ(problem.master[i], 1);
  }
}

TEST(OptimizerStep, RoundsConstantsComputedInDoubleOnce) {
  const OptimizerSettings settings{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  const OptimizerStep step = make_optimizer_step(settings, 1000, 0.125f);
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

TEST(AdamStepDeathTest, RefusesMeaninglessSettings) {
  EXPECT_DEATH(make_optimizer_step({}, 0), "count from 1");
  EXPECT_DEATH(make_optimizer_step({.beta1 = 1.0}, 1), "betas are 1.0");
  EXPECT_DEATH(make_optimizer_step({.eps = -1.0}, 1), "eps is -1");
  EXPECT_DEATH(make_optimizer_step({.lr = std::numeric_limits<double>::quiet_NaN()}, 1), "lr is");
}

TEST(AdamDeathTest, RefusesParametersThatOverlapGradientsOfAnotherSize) {
  AdamProblem problem(4, DataType::fp32, DataType::bf16, 0, true);
  EXPECT_DEATH(problem.update(InstructionSet::scalar, make_optimizer_step({}, 1)), "overlap");
}

}  // namespace
}  // namespace terrace
