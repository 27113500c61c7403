// What the Llama family adds to the operations.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compute_test_support.h"
#include "reference_ops.h"

namespace terrace::testing::ops_rms_rotary_gated_test {
namespace {

using reference::Values;
using reference::widened;

constexpr double kTolerance = 3e-5;

class LlamaOperation : public Operation {};

TEST_P(LlamaOperation, RootMeanSquareNormMatchesDoublePrecisionForwardAndBackward) {
  for (const NormShape& shape : {NormShape{1, 1, 1e-6f}, NormShape{5, 7, 1e-3f}, NormShape{70, 33, 1e-6f},
                                 NormShape{130, 64, 1e-5f}}) {
    const uint64_t count = shape.rows * shape.width;
    const std::vector<float> x = random_values(count, 1), gamma = random_values(shape.width, 2);
    const std::vector<float> dy = random_values(count, 4);
    std::vector<float> y(count), roots(shape.rows);
    const NormStatistics statistics{{}, roots};
    ops_.rms_norm_forward(shape, x, view(gamma), y, statistics, work_.arena());
    Values x_ref = widened(x), gamma_ref = widened(gamma);
    const auto norm = [&] { return reference::rms_norm(x_ref, gamma_ref, shape.epsilon); };
    expect_near(y, norm(), kTolerance, "norm");
    std::vector<float> dx = random_values(count, 5), dgamma(shape.width);
    const std::vector<float> stream_gradient = dx;
    ops_.rms_norm_backward(shape, x, statistics, view(gamma), dy, dx, into(dgamma), work_.arena());
    for (size_t i = 0; i < count; ++i) dx[i] -= stream_gradient[i];
    const auto loss = [&] { return reference::dot(norm(), dy); };
    reference::expect_gradient(dx, x_ref, loss, 2e-3, "dx");
    reference::expect_gradient(dgamma, gamma_ref, loss, 1e-3, "dgamma");
  }
}

TEST_P(LlamaOperation, LinearWithRowsOfOutputsMatchesDoublePrecision) {
  for (const bool biased : {true, false}) {
    const LinearShape shape{37, 29, 71, true, biased};
    const std::vector<float> x = random_values(shape.rows * shape.inputs, 1);
    const std::vector<float> weight = random_values(shape.inputs * shape.outputs, 2);
    const std::vector<float> bias = random_values(biased ? shape.outputs : 0, 3);
    const std::vector<float> dy = random_values(shape.rows * shape.outputs, 4);
    std::vector<float> y(dy.size()), dweight(weight.size()), dbias(bias.size());
    ops_.linear_forward(shape, x, view(weight), biased ? view(bias) : ParameterView{}, y, work_.arena());
    Values x_ref = widened(x), weight_ref = widened(weight), bias_ref = widened(bias);
    const auto apply = [&] { return reference::linear_of_rows(x_ref, weight_ref, 71, bias_ref); };
    expect_near(y, apply(), kTolerance, "linear");
    const std::vector<float> before = random_values(x.size(), 5);
    std::vector<float> dx = before;
    ops_.linear_backward(shape, x, view(weight), dy, dx, HostOps::InputGradient::add, into(dweight),
                         biased ? into(dbias) : GradientTarget{}, work_.arena());
    for (size_t i = 0; i < dx.size(); ++i) dx[i] -= before[i];
    const auto loss = [&] { return reference::dot(apply(), dy); };
    reference::expect_gradient(dx, x_ref, loss, 2e-3, "dx");
    reference::expect_gradient(dweight, weight_ref, loss, 1e-3, "dweight");
    if (biased) reference::expect_gradient(dbias, bias_ref, loss, 1e-3, "dbias");
  }
}

TEST_P(LlamaOperation, SkipsGradientsThatHaveNoAddress) {
  const LinearShape shape{20, 24, 40, true, true};
  const std::vector<float> x = random_values(480, 1), weight = random_values(960, 2);
  const std::vector<float> dy = random_values(800, 4);
  std::vector<float> dx(480), dx_alone(480), dweight(960), dbias(40);
  const auto overwrite = HostOps::InputGradient::overwrite;
  ops_.linear_backward(shape, x, view(weight), dy, dx, overwrite, into(dweight), into(dbias), work_.arena());
  ops_.linear_backward(shape, x, view(weight), dy, dx_alone, overwrite, {}, {}, work_.arena());
  EXPECT_EQ(dx_alone, dx);
}

TEST_P(LlamaOperation, GroupedAttentionMatchesDoublePrecisionForwardAndBackward) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 7, 6, 2, 5}, AttentionShape{1, 101, 4, 1, 9}, AttentionShape{1, 261, 2, 1, 2}}) {
    const uint64_t q = shape.query_width(), kv = shape.key_value_width();
    const std::vector<float> queries = random_values(shape.tokens() * q, 1);
    const std::vector<float> keys = random_values(shape.tokens() * kv, 2);
    const std::vector<float> values = random_values(shape.tokens() * kv, 3);
    const std::vector<float> dy = random_values(shape.tokens() * q, 4);
    std::vector<float> y(dy.size()), log_sums(shape.tokens() * shape.heads);
    const AttentionRows<const float> inputs{queries, keys, values, q, kv};
    ops_.attention_forward(shape, inputs, y, log_sums, work_.arena());
    Values q_ref = widened(queries), k_ref = widened(keys), v_ref = widened(values);
    const auto attend = [&] {
      return reference::attention(q_ref, k_ref, v_ref, shape.sequence, shape.heads, shape.key_value_heads,
                                  shape.head_size);
    };
    expect_near(y, attend(), kTolerance, "attention");
    std::vector<float> dq(queries.size(), 9.0f), dk(keys.size(), 9.0f), dv(values.size(), 9.0f);
    ops_.attention_backward(shape, inputs, y, log_sums, dy, {dq, dk, dv, q, kv}, work_.arena());
    const auto loss = [&] { return reference::dot(attend(), dy); };
    reference::expect_gradient(dq, q_ref, loss, 1e-3, "dq", 15);
    reference::expect_gradient(dk, k_ref, loss, 1e-3, "dk", 15);
    reference::expect_gradient(dv, v_ref, loss, 1e-3, "dv", 15);
  }
}

TEST_P(LlamaOperation, RotationTurnsPairsAndTurnsBack) {
  for (const RotaryShape& shape : {RotaryShape{14, 7, 3, 10}, RotaryShape{6, 6, 1, 64}}) {
    const uint64_t half = shape.head_size / 2;
    Values frequencies;
    std::vector<float> cosines, sines;
    for (uint64_t i = 0; i < half; ++i) frequencies.push_back(1.0 / static_cast<double>(1 + i * i));
    for (uint64_t position = 0; position < shape.sequence; ++position) {
      for (uint64_t i = 0; i < half; ++i) {
        cosines.push_back(static_cast<float>(std::cos(static_cast<double>(position) * frequencies[i])));
        sines.push_back(static_cast<float>(std::sin(static_cast<double>(position) * frequencies[i])));
      }
    }
    const std::vector<float> x = random_values(shape.tokens * shape.heads * shape.head_size, 1);
    std::vector<float> y = x;
    ops_.rotate(shape, {cosines, sines}, false, y);
    expect_near(y, reference::rotated(widened(x), shape.sequence, shape.head_size, frequencies, shape.heads),
                1e-6, "rotation");
    ops_.rotate(shape, {cosines, sines}, true, y);
    expect_near(y, widened(x), 1e-6, "back");
  }
}

TEST_P(LlamaOperation, GatedUnitMatchesDoublePrecisionForwardAndBackward) {
  std::vector<float> gate = random_values(16 * 1024 + 77, 1, 3.0f);
  gate[0] = 0.0f, gate[1] = 60.0f, gate[2] = -60.0f, gate[3] = 1e-30f, gate[4] = -1e-30f;
  const std::vector<float> up = random_values(gate.size(), 2), dy = random_values(gate.size(), 3);
  std::vector<float> y(gate.size()), dgate = dy, dup(gate.size());
  ops_.swiglu_forward(gate, up, y);
  Values gate_ref = widened(gate), up_ref = widened(up);
  expect_near(y, reference::swiglu(gate_ref, up_ref), 1e-6, "gated unit");
  ops_.swiglu_backward(gate, up, dgate, dup);
  const auto loss = [&] { return reference::dot(reference::swiglu(gate_ref, up_ref), dy); };
  reference::expect_gradient(dgate, gate_ref, loss, 1e-3, "dgate");
  reference::expect_gradient(dup, up_ref, loss, 1e-3, "dup");
}

INSTANTIATE_TEST_SUITE_P(Sets, LlamaOperation,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::ops_rms_rotary_gated_test
