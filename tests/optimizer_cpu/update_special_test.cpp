// Denormals, infinities and NaN in every optimizer: what optimizer.h says about them.
#include <gtest/gtest.h>

#include <algorithm>

#include <limits>

#include "instruction_set_cases.h"
#include "update_problem.h"

namespace terrace::update_special_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SpecialNumbers : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(SpecialNumbers);

TEST_P(SpecialNumbers, AreKeptWhereTheyAreDenormal) {
  const float tiny = 3e-40f;  // below the smallest normal number, 1.2e-38
  for (const MomentType moment : {MomentType::fp32, MomentType::bf16}) {
    for (const MasterForm form : {MasterForm::whole, MasterForm::remainder}) {
      for (OptimizerSettings settings : every_settings()) {
        settings.lr = 0;
        settings.weight_decay = 0;
        settings.beta1 = 0;  // Adam's m is the gradient
        settings.beta2 = 0.5;
        settings.eps = 1;
        UpdateProblem problem(settings, {DataType::fp32, DataType::bf16, moment, form}, 83, 1);
        SCOPED_TRACE(problem.name());
        for (size_t i = 0; i < problem.count; ++i) {
          problem.set_master(i, tiny);
          problem.set_moment(0, i, 0);
          problem.set_moment(1, i, tiny);
          problem.set_gradient(i, tiny);
        }
        problem.update(GetParam(), make_optimizer_step(settings, 1));
        for (size_t i = 0; i < problem.count; ++i) {
          ASSERT_EQ(problem.master(i, true), tiny);
          ASSERT_EQ(problem.parameter(i), to_float(to_bf16(tiny)));
          ASSERT_NE(problem.parameter(i), 0);
          if (settings.kind == OptimizerKind::adam) {
            ASSERT_EQ(problem.moment(0, i), rounded(tiny, number_type_of(moment)));
            ASSERT_EQ(problem.moment(1, i),
                      rounded(rounded(tiny, number_type_of(moment)) / 2, number_type_of(moment)));
          } else if (settings.kind == OptimizerKind::lion) {
            ASSERT_EQ(problem.moment(0, i), rounded(tiny / 2, number_type_of(moment)));
          } else if (settings.kind == OptimizerKind::sgd && settings.momentum != 0) {
            ASSERT_EQ(problem.moment(0, i), rounded(tiny, number_type_of(moment)));
          }
        }
      }
    }
  }
}

// What one step makes of a bad gradient: the master.
float expected_master(const OptimizerSettings& s, float before, float bad) {
  if (std::isnan(bad)) return kNan;
  switch (s.kind) {
    case OptimizerKind::adam:
    case OptimizerKind::adagrad:
      return kNan;
    case OptimizerKind::lion: {
      const auto decay = static_cast<float>(s.lr * s.weight_decay);
      return (before - decay * before) - (bad > 0 ? static_cast<float>(s.lr) : -static_cast<float>(s.lr));
    }
    case OptimizerKind::sgd:
    case OptimizerKind::muon:
      break;
  }
  return -bad;
}

TEST_P(SpecialNumbers, DoWhatIsDocumentedAndTouchNoNeighbour) {
  constexpr size_t kBad[] = {0, 17, 63, 64, 99};
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      for (const float bad : {kInfinity, -kInfinity, kNan}) {
        std::mt19937 random(4);
        UpdateProblem clean(settings, layout, 100, 2);
        clean.fill_state(random);
        clean.fill_gradients(random);
        UpdateProblem problem = clean;
        SCOPED_TRACE(problem.name());
        for (const size_t i : kBad) problem.set_gradient(i, bad);
        const UpdateProblem before = problem;
        const OptimizerStep step = make_optimizer_step(settings, 3);
        clean.update(GetParam(), step);
        problem.update(GetParam(), step);
        for (size_t i = 0; i < problem.count; ++i) {
          const float master = problem.master(i, true);
          if (std::ranges::find(kBad, i) == std::end(kBad)) {
            ASSERT_TRUE(identical(master, clean.master(i, true))) << "element " << i;
            continue;
          }
          ASSERT_TRUE(same(master, expected_master(settings, before.master(i, false), bad)))
              << "element " << i;
          ASSERT_TRUE(same(problem.parameter(i), rounded(master, layout.parameter)));
          for (size_t k = 0; k < problem.moments.size(); ++k) {
            const bool squared = k == 1 || settings.kind == OptimizerKind::adagrad;
            ASSERT_TRUE(same(problem.moment(k, i), squared ? std::abs(bad) : bad)) << "moment " << k;
          }
        }
      }
    });
  }
}

TEST_P(SpecialNumbers, LeaveTheOneCanonicalNanInMasterAndParameter) {
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      std::mt19937 random(5);
      UpdateProblem problem(settings, layout, 70, 1);
      problem.fill_state(random);
      problem.fill_gradients(random);
      SCOPED_TRACE(problem.name());
      const auto negative_with_payload = std::bit_cast<float>(0xffc12345u);
      for (size_t i = 0; i < problem.count; i += 3) problem.set_master(i, negative_with_payload);
      problem.update(GetParam(), make_optimizer_step(settings, 2));
      for (size_t i = 0; i < problem.count; ++i) {
        ASSERT_EQ(std::isnan(problem.master(i, true)), i % 3 == 0);
        if (i % 3 != 0) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(problem.master(i, true)), 0x7fc00000u);
        ASSERT_TRUE(
            identical(problem.parameter(i), rounded(std::bit_cast<float>(0x7fc00000u), layout.parameter)));
      }
    });
  }
}

TEST_P(SpecialNumbers, SaturateTheSquareOfAHugeGradientWithoutMovingTheWeight) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adagrad}) {
    UpdateProblem problem({.kind = kind, .lr = 0.25}, {}, 80, 0);
    for (size_t i = 0; i < problem.count; ++i) {
      problem.set_master(i, 1);
      problem.set_moment(0, i, 0);
      problem.set_moment(1, i, 0);
      problem.set_gradient(i, 1e30f);
    }
    problem.update(GetParam(), make_optimizer_step(problem.settings, 1));
    for (size_t i = 0; i < problem.count; ++i) {
      EXPECT_TRUE(std::isinf(problem.moment(moment_count(kind) - 1, i)));  // as in every fp32 Adam
      EXPECT_EQ(problem.master(i, true), 1);
    }
  }
}

TEST_P(SpecialNumbers, MakeNanOfAWeightWithoutGradientsWhereEpsIsZero) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adagrad}) {
    UpdateProblem problem({.kind = kind, .eps = 0}, {}, 20, 0);
    for (size_t i = 0; i < problem.count; ++i) {
      problem.set_master(i, 1);
      problem.set_moment(0, i, 0);
      problem.set_moment(1, i, 0);
      problem.set_gradient(i, 0);
    }
    problem.update(GetParam(), make_optimizer_step(problem.settings, 1));
    for (size_t i = 0; i < problem.count; ++i) EXPECT_TRUE(std::isnan(problem.master(i, true)));
  }
}

}  // namespace
}  // namespace terrace::update_special_test
