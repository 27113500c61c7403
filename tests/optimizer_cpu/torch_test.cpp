// The kernels against torch.optim, whose weights bench/compare/optimizers/make_expected.py wrote down.
#include <gtest/gtest.h>

#include "instruction_set_cases.h"
#include "torch_steps.h"
#include "update_problem.h"

namespace terrace::torch_test {
namespace {

class TorchOptimizers : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(TorchOptimizers);

// Torch computed in fp64. A step of ours adds a few roundings of numbers below 1, each half of 2^-23 at most,
// to the weight, and less to what moves it: 8 of them per step are more than there are.
constexpr double kRoundingsPerStep = 8;

TEST_P(TorchOptimizers, MoveWeightsAsTheKernelsDoWithEveryOption) {
  constexpr size_t kWeights = std::size(TorchSteps{}.weights[0]);
  constexpr size_t kCopies = 20;  // side by side, so that there are whole vectors
  for (const TorchSteps& torch : kTorchSteps) {
    UpdateProblem problem(torch.settings, {}, kWeights * kCopies, 0);
    SCOPED_TRACE(torch.name);
    for (size_t i = 0; i < problem.count; ++i) {
      problem.set_master(i, 0.25f * (static_cast<float>(i % kWeights) - 2.5f));
      for (size_t k = 0; k < problem.moments.size(); ++k) problem.set_moment(k, i, 0);
    }
    for (uint64_t step = 1; step <= std::size(torch.weights); ++step) {
      for (size_t i = 0; i < problem.count; ++i) {
        const auto number = static_cast<int>((7 * (i % kWeights) + 5 * step) % 13) - 6;
        problem.set_gradient(i, static_cast<float>(number) / 16);
      }
      problem.update(GetParam(), make_optimizer_step(torch.settings, step));
      for (size_t i = 0; i < problem.count; ++i) {
        ASSERT_NEAR(problem.master(i, true), torch.weights[step - 1][i % kWeights],
                    kRoundingsPerStep * static_cast<double>(step) * 0x1p-24)
            << "weight " << i << " after step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::torch_test
