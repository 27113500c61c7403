#include <terrace/reference/model/compute/host_ops.h>

#include <gtest/gtest.h>

#include <vector>

#include "compute_test_support.h"
#include "reference_ops.h"
#include "support/work_memory.h"

namespace terrace::testing::compute_adapter_test {
namespace {

using reference::Values;
using reference::widened;

// start + scale * (x A^T) B^T in double precision.
Values adapted(const AdapterShape& shape, const Values& start, const Values& x, const Values& a,
               const Values& b) {
  Values y = start;
  for (uint64_t row = 0; row < shape.rows; ++row) {
    for (uint64_t r = 0; r < shape.rank; ++r) {
      double down = 0;
      for (uint64_t i = 0; i < shape.inputs; ++i) down += x[row * shape.inputs + i] * a[r * shape.inputs + i];
      for (uint64_t j = 0; j < shape.outputs; ++j) {
        y[row * shape.outputs + j] += static_cast<double>(shape.scale) * down * b[j * shape.rank + r];
      }
    }
  }
  return y;
}

class Adapter : public ForEachInstructionSet {
 protected:
  Workers workers_{2};
  HostOps ops_{workers_, GetParam()};
  WorkMemory work_{64 * kMiB};
  const AdapterShape shape_{37, 29, 71, 5, 1.5f};
  const std::vector<float> x_ = random_values(shape_.rows * shape_.inputs, 1);
  const std::vector<float> a_ = random_values(shape_.rank * shape_.inputs, 2);
  const std::vector<float> b_ = random_values(shape_.outputs * shape_.rank, 3);
  const std::vector<float> dy_ = random_values(shape_.rows * shape_.outputs, 4);
};

TEST_P(Adapter, MatchesDoublePrecisionForwardAndBackward) {
  const std::vector<float> start = random_values(dy_.size(), 5);
  std::vector<float> y = start;
  ops_.adapter_forward(shape_, x_, view(a_), view(b_), y, work_.arena());
  Values x = widened(x_), a = widened(a_), b = widened(b_);
  const auto forward = [&] { return adapted(shape_, widened(start), x, a, b); };
  expect_near(y, forward(), 1e-4, "adapter");

  const std::vector<float> others = random_values(x_.size(), 6);
  std::vector<float> dx = others, da(a_.size()), db(b_.size());
  ops_.adapter_backward(shape_, x_, view(a_), view(b_), dy_, dx, into(da), into(db), work_.arena());
  for (size_t i = 0; i < dx.size(); ++i) dx[i] -= others[i];
  const auto loss = [&] { return reference::dot(forward(), dy_); };
  reference::expect_gradient(dx, x, loss, 1e-3, "dx");
  reference::expect_gradient(da, a, loss, 1e-3, "dA");
  reference::expect_gradient(db, b, loss, 1e-3, "dB");
}

TEST_P(Adapter, NeedsNoGradientOfItsInput) {
  std::vector<float> dx(x_.size()), da(a_.size()), db(b_.size()), da_alone(a_.size()), db_alone(b_.size());
  ops_.adapter_backward(shape_, x_, view(a_), view(b_), dy_, dx, into(da), into(db), work_.arena());
  ops_.adapter_backward(shape_, x_, view(a_), view(b_), dy_, {}, into(da_alone), into(db_alone),
                        work_.arena());
  EXPECT_EQ(da, da_alone);
  EXPECT_EQ(db, db_alone);
}

class AdapterThreads : public ForEachInstructionSet {};

TEST_P(AdapterThreads, DoNotChangeTheBits) {
  const AdapterShape shape{300, 200, 170, 9, 0.5f};
  const std::vector<float> x = random_values(shape.rows * shape.inputs, 1);
  const std::vector<float> a = random_values(shape.rank * shape.inputs, 2);
  const std::vector<float> b = random_values(shape.outputs * shape.rank, 3);
  WorkMemory work{64 * kMiB};
  std::vector<float> expected;
  for (const uint32_t threads : {1u, 2u, 3u}) {
    Workers workers{threads};
    std::vector<float> y(shape.rows * shape.outputs);
    HostOps(workers, GetParam()).adapter_forward(shape, x, view(a), view(b), y, work.arena());
    if (expected.empty()) expected = y;
    EXPECT_EQ(y, expected) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, AdapterThreads,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);
INSTANTIATE_TEST_SUITE_P(Sets, Adapter,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::compute_adapter_test
