#include <terrace/reference/model/compute/host_ops.h>

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "compute_test_support.h"
#include "reference_ops.h"

namespace terrace::testing::ops_test {
namespace {

using reference::Values;
using reference::widened;

constexpr double kTolerance = 3e-5;
constexpr auto kOverwrite = HostOps::InputGradient::overwrite;

TEST_P(Operation, NormMatchesDoublePrecisionForwardAndBackward) {
  for (const NormShape& shape :
       {NormShape{1, 1}, NormShape{5, 7, 1e-3f}, NormShape{70, 33}, NormShape{130, 64}}) {
    const uint64_t count = shape.rows * shape.width;
    const std::vector<float> x = random_values(count, 1), gamma = random_values(shape.width, 2);
    const std::vector<float> beta = random_values(shape.width, 3), dy = random_values(count, 4);
    std::vector<float> y(count), means(shape.rows), deviations(shape.rows);
    const NormStatistics statistics{means, deviations};
    ops_.layer_norm_forward(shape, x, view(gamma), view(beta), y, statistics, work_.arena());
    Values x_ref = widened(x), gamma_ref = widened(gamma), beta_ref = widened(beta);
    expect_near(y, reference::layer_norm(x_ref, gamma_ref, beta_ref, shape.epsilon), kTolerance, "norm");

    std::vector<float> dx = random_values(count, 5), dgamma(shape.width), dbeta(shape.width);
    const std::vector<float> stream_gradient = dx;
    ops_.layer_norm_backward(shape, x, statistics, view(gamma), dy, dx, into(dgamma), into(dbeta),
                             work_.arena());
    for (size_t i = 0; i < count; ++i) dx[i] -= stream_gradient[i];
    const auto loss = [&] {
      return reference::dot(reference::layer_norm(x_ref, gamma_ref, beta_ref, shape.epsilon), dy);
    };
    reference::expect_gradient(dx, x_ref, loss, 1e-3, "dx");
    reference::expect_gradient(dgamma, gamma_ref, loss, 1e-3, "dgamma");
    reference::expect_gradient(dbeta, beta_ref, loss, 1e-3, "dbeta");
  }
}

TEST_P(Operation, LinearMatchesDoublePrecisionForwardAndBackward) {
  const LinearShape shape{37, 29, 71};
  const std::vector<float> x = random_values(shape.rows * shape.inputs, 1);
  const std::vector<float> weight = random_values(shape.inputs * shape.outputs, 2);
  const std::vector<float> bias = random_values(shape.outputs, 3),
                           dy = random_values(shape.rows * shape.outputs, 4);
  std::vector<float> y(dy.size()), dx(x.size()), dweight(weight.size()), dbias(bias.size());
  ops_.linear_forward(shape, x, view(weight), view(bias), y, work_.arena());
  Values x_ref = widened(x), weight_ref = widened(weight), bias_ref = widened(bias);
  expect_near(y, reference::linear(x_ref, weight_ref, bias_ref), kTolerance, "linear");
  ops_.linear_backward(shape, x, view(weight), dy, dx, kOverwrite, into(dweight), into(dbias), work_.arena());
  const auto loss = [&] { return reference::dot(reference::linear(x_ref, weight_ref, bias_ref), dy); };
  reference::expect_gradient(dx, x_ref, loss, 1e-3, "dx");
  reference::expect_gradient(dweight, weight_ref, loss, 1e-3, "dweight");
  reference::expect_gradient(dbias, bias_ref, loss, 1e-3, "dbias");
}

// A linear layer with 16-bit parameters is the one with the same parameters in fp32; its gradients are
// rounded once.
template <typename T>
void expect_linear_with(const HostOps& ops, StackArena& arena) {
  const LinearShape shape{20, 24, 43};
  const std::vector<float> x = random_values(shape.rows * shape.inputs, 1);
  const std::vector<T> weight = rounded_to<T>(random_values(shape.inputs * shape.outputs, 2));
  const std::vector<T> bias = rounded_to<T>(random_values(shape.outputs, 3));
  const std::vector<float> full_weight = as_floats(weight), full_bias = as_floats(bias);
  const std::vector<float> dy = random_values(shape.rows * shape.outputs, 4);
  std::vector<float> y(dy.size()), y_full(dy.size()), dx(x.size()), dx_full(x.size());
  std::vector<float> dweight(weight.size()), dbias(bias.size());
  ops.linear_forward(shape, x, view(weight), view(bias), y, arena);
  ops.linear_forward(shape, x, view(full_weight), view(full_bias), y_full, arena);
  EXPECT_EQ(y, y_full);
  const std::vector<T> before = rounded_to<T>(random_values(weight.size(), 5));
  std::vector<T> dweight_half = before, dbias_half(before.begin(), before.begin() + 43);
  ops.linear_backward(shape, x, view(weight), dy, dx, kOverwrite, into(dweight_half, true),
                      into(dbias_half, true), arena);
  ops.linear_backward(shape, x, view(full_weight), dy, dx_full, kOverwrite, into(dweight), into(dbias),
                      arena);
  EXPECT_EQ(dx, dx_full);
  const auto sum_at = [&](size_t i, float contribution) {
    T sum;
    round_to(to_float(before[i]) + contribution, sum);
    return sum.bits;
  };
  for (size_t i = 0; i < before.size(); ++i) ASSERT_EQ(dweight_half[i].bits, sum_at(i, dweight[i]));
  for (size_t i = 0; i < dbias.size(); ++i) ASSERT_EQ(dbias_half[i].bits, sum_at(i, dbias[i]));
}

TEST_P(Operation, Reads16BitParametersAndAddsTo16BitGradientsOnce) {
  expect_linear_with<Bf16>(ops_, work_.arena());
  expect_linear_with<Fp16>(ops_, work_.arena());
}

// [queries | keys | values] in one matrix, as GPT-2 has them.
template <typename Float, typename Vector>
AttentionRows<Float> columns_of(Vector& qkv, uint64_t width) {
  const std::span<Float> all(qkv);
  return {all, all.subspan(width), all.subspan(2 * width), 3 * width, 3 * width};
}

TEST_P(Operation, AttentionMatchesDoublePrecisionForwardAndBackward) {
  // Below, at and beyond a block of queries; a head size that is no multiple of a vector.
  for (const AttentionShape& shape : {AttentionShape{2, 7, 3, 3, 5}, AttentionShape{1, 96, 1, 1, 16},
                                      AttentionShape{1, 263, 2, 2, 3}, AttentionShape{1, 1, 2, 2, 4}}) {
    const uint64_t width = shape.query_width();
    const std::vector<float> qkv = random_values(shape.tokens() * 3 * width, 1);
    const std::vector<float> dy = random_values(shape.tokens() * width, 2);
    std::vector<float> y(dy.size()), log_sums(shape.tokens() * shape.heads), dqkv(qkv.size(), 99.0f);
    const auto inputs = columns_of<const float>(qkv, width);
    ops_.attention_forward(shape, inputs, y, log_sums, work_.arena());
    Values qkv_ref = widened(qkv);
    const auto attend = [&] { return reference::attention(qkv_ref, shape.sequence, shape.heads, width); };
    expect_near(y, attend(), kTolerance, "attention");
    ops_.attention_backward(shape, inputs, y, log_sums, dy, columns_of<float>(dqkv, width), work_.arena());
    reference::expect_gradient(
        dqkv, qkv_ref, [&] { return reference::dot(attend(), dy); }, 1e-3, "dqkv", 25);
  }
}

TEST_P(Operation, AttentionSurvivesLargeScores) {
  const AttentionShape shape{1, 5, 1, 1, 4};
  const std::vector<float> qkv = random_values(shape.tokens() * 12, 1, 60.0f);
  std::vector<float> y(shape.tokens() * 4), log_sums(shape.tokens());
  ops_.attention_forward(shape, columns_of<const float>(qkv, 4), y, log_sums, work_.arena());
  for (const float value : y) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(Operation, GeluMatchesDoublePrecisionForwardAndBackward) {
  std::vector<float> x = random_values(16 * 1024 + 77, 1, 3.0f);
  x[0] = 0.0f, x[1] = 50.0f, x[2] = -50.0f, x[3] = 1e-30f, x[4] = -1e-30f;
  const std::vector<float> dy = random_values(x.size(), 2);
  std::vector<float> y(x.size()), dx = dy;
  ops_.gelu_forward(x, y);
  Values x_ref = widened(x);
  expect_near(y, reference::gelu(x_ref), 1e-6, "gelu");
  ops_.gelu_backward(x, dx);
  reference::expect_gradient(
      dx, x_ref, [&] { return reference::dot(reference::gelu(x_ref), dy); }, 1e-3, "dx");
}

TEST_P(Operation, AddAdds) {
  const std::vector<float> x = random_values(40000, 1), before = random_values(40000, 2);
  std::vector<float> y = before;
  ops_.add(x, y);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
}

// Memory for one run of an operation, or, for a dry run, null addresses of the same sizes.
class Buffers {
 public:
  explicit Buffers(bool dry_run) : dry_run_(dry_run) {}
  std::span<float> floats(uint64_t count) {
    if (dry_run_) return {static_cast<float*>(nullptr), count};
    return floats_.emplace_back(random_values(count, floats_.size()));
  }
  std::span<const int32_t> tokens(uint64_t count) {
    if (dry_run_) return {static_cast<const int32_t*>(nullptr), count};
    return tokens_.emplace_back(count, 3);
  }
  std::span<uint32_t> counts(uint64_t count) {
    if (dry_run_) return {static_cast<uint32_t*>(nullptr), count};
    return counts_.emplace_back(count, 0);
  }
  std::span<RunningLoss> losses(uint64_t count) {
    if (dry_run_) return {static_cast<RunningLoss*>(nullptr), count};
    return losses_.emplace_back(count, RunningLoss{0.0f, 1.0f, 0.0f});
  }
  ParameterView parameter(uint64_t count) {
    return {reinterpret_cast<const std::byte*>(floats(count).data()), DataType::bf16};
  }
  GradientTarget gradient(uint64_t count) {
    return {{reinterpret_cast<std::byte*>(floats(count).data()), true}, DataType::bf16};
  }

 private:
  bool dry_run_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<int32_t>> tokens_;
  std::deque<std::vector<uint32_t>> counts_;
  std::deque<std::vector<RunningLoss>> losses_;
};

using Call = void (*)(const HostOps& ops, Buffers& b, StackArena& arena);

constexpr EmbeddingShape kTable{.tokens = 20, .width = 24, .first_row = 128, .rows = 300};
constexpr PositionShape kPositions{.batch = 2, .sequence = 10, .width = 24, .context = 12};
constexpr NormShape kRows{20, 24};
constexpr LinearShape kLinear{20, 24, 48};
constexpr LinearShape kUnbiased{20, 24, 48, true, false};
constexpr AttentionShape kAttention{
    .batch = 1, .sequence = 100, .heads = 2, .key_value_heads = 1, .head_size = 8};
constexpr VocabularyShape kLogits{.tokens = 20, .width = 24, .first_row = 128, .rows = 300};

AttentionRows<const float> attention_inputs(Buffers& b) {
  const std::span<float> queries = b.floats(1600), keys = b.floats(800);
  return {queries, keys, b.floats(800), 16, 8};
}
AttentionRows<float> attention_gradients(Buffers& b) {
  const std::span<float> queries = b.floats(1600), keys = b.floats(800);
  return {queries, keys, b.floats(800), 16, 8};
}
TokenOrder order_of(Buffers& b) {
  return {b.counts(429), b.counts(20)};
}

const std::vector<Call> kCalls = {
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.embedding_forward(kTable, b.tokens(20), b.parameter(7200), b.floats(480));
      ops.order_tokens(b.tokens(20), order_of(b));
      ops.embedding_backward(kTable, order_of(b), b.floats(480), b.gradient(7200), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.position_forward(kPositions, b.parameter(288), b.floats(480), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.position_backward(kPositions, b.floats(480), b.gradient(288), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.rms_norm_forward(kRows, b.floats(480), b.parameter(24), b.floats(480), {{}, b.floats(20)}, arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.rms_norm_backward(kRows, b.floats(480), {{}, b.floats(20)}, b.parameter(24), b.floats(480),
                            b.floats(480), b.gradient(24), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.linear_forward(kUnbiased, b.floats(480), b.parameter(1152), {}, b.floats(960), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.layer_norm_forward(kRows, b.floats(480), b.parameter(24), b.parameter(24), b.floats(480),
                             {b.floats(20), b.floats(20)}, arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.layer_norm_backward(kRows, b.floats(480), {b.floats(20), b.floats(20)}, b.parameter(24),
                              b.floats(480), b.floats(480), b.gradient(24), b.gradient(24), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.linear_forward(kLinear, b.floats(480), b.parameter(1152), b.parameter(48), b.floats(960), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.linear_backward(kLinear, b.floats(480), b.parameter(1152), b.floats(960), b.floats(480), kOverwrite,
                          b.gradient(1152), b.gradient(48), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.attention_forward(kAttention, attention_inputs(b), b.floats(1600), b.floats(200), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      AttentionShape shape = kAttention;
      shape.sequence = 2, shape.past = 90, shape.spare = 8;
      ops.attention_forward(shape, attention_inputs(b), b.floats(32), b.floats(4), arena);
      ops.copy_rows({20, 8, 24, 8}, b.floats(480), b.floats(160));
      PositionShape later = kPositions;
      later.first = 2;
      ops.position_forward(later, b.parameter(288), b.floats(480), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.attention_backward(kAttention, attention_inputs(b), b.floats(1600), b.floats(200), b.floats(1600),
                             attention_gradients(b), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena&) {
      ops.gelu_forward(b.floats(480), b.floats(480));
      ops.gelu_backward(b.floats(480), b.floats(480));
      ops.add(b.floats(480), b.floats(480));
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.cross_entropy_forward(kLogits, b.floats(480), b.parameter(7200), b.tokens(20), b.losses(20), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.cross_entropy_loss(b.losses(20), b.floats(20), b.floats(1).first<1>());
      ops.cross_entropy_backward(kLogits, b.floats(480), b.parameter(7200), b.tokens(20), b.floats(20), 1.0f,
                                 b.floats(480), b.gradient(7200), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.logits(kLogits, b.floats(480), b.parameter(7200), 428, b.floats(20 * 428), arena);
    },
};

TEST_P(Operation, DryRunNeedsTheSameScratchAndTouchesNothing) {
  const HostOps dry_ops(workers_, GetParam(), ProductType::fp32, true);
  for (size_t i = 0; i < kCalls.size(); ++i) {
    WorkMemory work(32 * kMiB);
    Buffers real(false), nothing(true);
    kCalls[i](ops_, real, work.arena());
    StackArena dry = StackArena::dry_run();
    kCalls[i](dry_ops, nothing, dry);
    EXPECT_EQ(dry.peak_bytes(), work.arena().peak_bytes()) << "call " << i;
    EXPECT_EQ(dry.used_bytes(), 0u);
    EXPECT_EQ(work.arena().used_bytes(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Operation,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::ops_test
