#include <terrace/runtime/compute/ops.h>

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "compute_test_support.h"
#include "reference_ops.h"
#include "support/work_memory.h"

namespace terrace::testing {
namespace {

using reference::Values;
using reference::widened;

constexpr double kTolerance = 3e-5;

template <typename T>
ParameterView view(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), type_of(T{})};
}
template <typename T>
GradientTarget into(std::vector<T>& values, bool accumulate = false) {
  return {{reinterpret_cast<std::byte*>(values.data()), accumulate}, type_of(T{})};
}

std::vector<int32_t> random_tokens(uint64_t count, uint64_t vocabulary, uint64_t stream) {
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random_bits({.seed = 5, .stream = stream}, i) % vocabulary));
  }
  return tokens;
}

class Operation : public ForEachInstructionSet {
 protected:
  Workers workers_{2};
  HostOps ops_{workers_, GetParam()};
  WorkMemory work_{64 * kMiB};
};

TEST_P(Operation, NormMatchesDoublePrecisionForwardAndBackward) {
  for (const RowShape& shape : {RowShape{1, 1}, RowShape{5, 7}, RowShape{70, 33}, RowShape{130, 64}}) {
    const uint64_t count = shape.rows * shape.width;
    const std::vector<float> x = random_values(count, 1), gamma = random_values(shape.width, 2);
    const std::vector<float> beta = random_values(shape.width, 3), dy = random_values(count, 4);
    std::vector<float> y(count), means(shape.rows), deviations(shape.rows);
    const NormStatistics statistics{means, deviations};
    ops_.layer_norm_forward(shape, x, view(gamma), view(beta), y, statistics, work_.arena());
    Values x_ref = widened(x), gamma_ref = widened(gamma), beta_ref = widened(beta);
    expect_near(y, reference::layer_norm(x_ref, gamma_ref, beta_ref), kTolerance, "norm");

    std::vector<float> dx = random_values(count, 5), dgamma(shape.width), dbeta(shape.width);
    const std::vector<float> stream_gradient = dx;
    ops_.layer_norm_backward(shape, x, statistics, view(gamma), dy, dx, into(dgamma), into(dbeta),
                             work_.arena());
    for (size_t i = 0; i < count; ++i) dx[i] -= stream_gradient[i];
    const auto loss = [&] { return reference::dot(reference::layer_norm(x_ref, gamma_ref, beta_ref), dy); };
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
  ops_.linear_backward(shape, x, view(weight), dy, dx, into(dweight), into(dbias), work_.arena());
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
  ops.linear_backward(shape, x, view(weight), dy, dx, into(dweight_half, true), into(dbias_half, true),
                      arena);
  ops.linear_backward(shape, x, view(full_weight), dy, dx_full, into(dweight), into(dbias), arena);
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

TEST_P(Operation, AttentionMatchesDoublePrecisionForwardAndBackward) {
  // Below, at and beyond a block of queries; a head size that is no multiple of a vector.
  for (const AttentionShape& shape : {AttentionShape{2, 7, 3, 15}, AttentionShape{1, 96, 1, 16},
                                      AttentionShape{1, 101, 2, 18}, AttentionShape{1, 1, 2, 8}}) {
    const std::vector<float> qkv = random_values(shape.tokens() * 3 * shape.width, 1);
    const std::vector<float> dy = random_values(shape.tokens() * shape.width, 2);
    std::vector<float> y(dy.size()), log_sums(shape.tokens() * shape.heads), dqkv(qkv.size(), 99.0f);
    ops_.attention_forward(shape, qkv, y, log_sums, work_.arena());
    Values qkv_ref = widened(qkv);
    const auto attend = [&] {
      return reference::attention(qkv_ref, shape.sequence, shape.heads, shape.width);
    };
    expect_near(y, attend(), kTolerance, "attention");
    ops_.attention_backward(shape, qkv, y, log_sums, dy, dqkv, work_.arena());
    reference::expect_gradient(
        dqkv, qkv_ref, [&] { return reference::dot(attend(), dy); }, 1e-3, "dqkv", 25);
  }
}

TEST_P(Operation, AttentionSurvivesLargeScores) {
  const AttentionShape shape{1, 5, 1, 4};
  const std::vector<float> qkv = random_values(shape.tokens() * 3 * shape.width, 1, 60.0f);
  std::vector<float> y(shape.tokens() * shape.width), log_sums(shape.tokens());
  ops_.attention_forward(shape, qkv, y, log_sums, work_.arena());
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

TEST_P(Operation, EmbeddingMatchesDoublePrecisionForwardAndBackward) {
  const EmbeddingShape shape{.batch = 3, .sequence = 11, .width = 21, .vocabulary = 70, .context = 13};
  const std::vector<int32_t> tokens = random_tokens(shape.tokens(), 20, 1);  // some often, most never
  const std::vector<float> table = random_values(shape.vocabulary * shape.width, 2);
  const std::vector<float> positions = random_values(shape.context * shape.width, 3);
  const std::vector<float> dy = random_values(shape.tokens() * shape.width, 4);
  std::vector<float> y(dy.size());
  ops_.embedding_forward(shape, tokens, view(table), view(positions), y, work_.arena());
  Values table_ref = widened(table), positions_ref = widened(positions);
  const auto embed = [&] {
    return reference::embedding(tokens, table_ref, positions_ref, shape.sequence, shape.width);
  };
  expect_near(y, embed(), 1e-7, "embedding");
  const std::vector<Bf16> half_table = rounded_to<Bf16>(table), half_positions = rounded_to<Bf16>(positions);
  ops_.embedding_forward(shape, tokens, view(half_table), view(half_positions), y, work_.arena());
  expect_near(y, embed(), 1e-2, "bf16 embedding");
  const std::vector<Fp16> fp16_table = rounded_to<Fp16>(table), fp16_positions = rounded_to<Fp16>(positions);
  ops_.embedding_forward(shape, tokens, view(fp16_table), view(fp16_positions), y, work_.arena());
  expect_near(y, embed(), 1.5e-3, "fp16 embedding");

  std::vector<float> dtable(table.size(), 9.0f), dpositions(positions.size(), 9.0f);
  ops_.embedding_backward(shape, tokens, dy, into(dtable), into(dpositions), work_.arena());
  const auto loss = [&] { return reference::dot(embed(), dy); };
  reference::expect_gradient(dtable, table_ref, loss, 1e-3, "dtable", table.size());
  reference::expect_gradient(dpositions, positions_ref, loss, 1e-3, "dpositions", positions.size());

  std::vector<float> added_table = table, added_positions = positions;
  ops_.embedding_backward(shape, tokens, dy, into(added_table, true), into(added_positions, true),
                          work_.arena());
  for (size_t i = 0; i < table.size(); ++i) ASSERT_EQ(added_table[i], table[i] + dtable[i]);
  for (size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(added_positions[i], positions[i] + dpositions[i]);
}

TEST_P(Operation, CrossEntropyMatchesDoublePrecisionForwardAndBackward) {
  const VocabularyShape shape{.tokens = 19, .width = 14, .vocabulary = 133};
  const std::vector<float> x = random_values(shape.tokens * shape.width, 1);
  const std::vector<float> weight = random_values(shape.vocabulary * shape.width, 2);
  const std::vector<int32_t> targets = random_tokens(shape.tokens, shape.vocabulary, 3);
  std::vector<float> log_sums(shape.tokens), dx(x.size()), dweight(weight.size());
  const float loss = ops_.cross_entropy_forward(shape, x, view(weight), targets, log_sums, work_.arena());
  Values x_ref = widened(x), weight_ref = widened(weight);
  EXPECT_NEAR(loss, reference::cross_entropy(x_ref, weight_ref, targets), 1e-5);
  const float loss_scale = 512.0f;
  ops_.cross_entropy_backward(shape, x, view(weight), targets, log_sums, loss_scale, dx, into(dweight),
                              work_.arena());
  const auto scaled_loss = [&] { return loss_scale * reference::cross_entropy(x_ref, weight_ref, targets); };
  reference::expect_gradient(dx, x_ref, scaled_loss, 1e-3, "dx", x.size());
  reference::expect_gradient(dweight, weight_ref, scaled_loss, 1e-3, "dweight", 100);
}

// 4096 tokens leave 1024 columns for a tile: this vocabulary takes two.
TEST_P(Operation, CrossEntropyOverTilesOfTheVocabularyIsTheSame) {
  const VocabularyShape shape{.tokens = 4096, .width = 2, .vocabulary = 1100};
  const std::vector<float> x = random_values(shape.tokens * shape.width, 1);
  const std::vector<float> weight = random_values(shape.vocabulary * shape.width, 2);
  const std::vector<int32_t> targets = random_tokens(shape.tokens, shape.vocabulary, 3);
  std::vector<float> log_sums(shape.tokens), dx(x.size()), dweight(weight.size());
  const float loss = ops_.cross_entropy_forward(shape, x, view(weight), targets, log_sums, work_.arena());
  ops_.cross_entropy_backward(shape, x, view(weight), targets, log_sums, 4096.0f, dx, into(dweight),
                              work_.arena());

  // Sample by sample with few tokens, each of which has all its logits in one tile.
  const VocabularyShape part{.tokens = 1024, .width = 2, .vocabulary = 1100};
  double sum = 0;
  std::vector<double> dweight_sum(weight.size());
  for (size_t first = 0; first < shape.tokens; first += part.tokens) {
    const std::vector<float> rows(x.begin() + static_cast<long>(first * 2),
                                  x.begin() + static_cast<long>((first + part.tokens) * 2));
    const std::vector<int32_t> some(targets.begin() + static_cast<long>(first),
                                    targets.begin() + static_cast<long>(first + part.tokens));
    std::vector<float> sums(part.tokens), drows(rows.size()), dpart(weight.size());
    sum += ops_.cross_entropy_forward(part, rows, view(weight), some, sums, work_.arena());
    ops_.cross_entropy_backward(part, rows, view(weight), some, sums, 1024.0f, drows, into(dpart),
                                work_.arena());
    for (size_t i = 0; i < part.tokens; ++i) ASSERT_NEAR(sums[i], log_sums[first + i], 1e-5);
    for (size_t i = 0; i < drows.size(); ++i) ASSERT_NEAR(drows[i], dx[first * 2 + i], 1e-5);
    for (size_t i = 0; i < dpart.size(); ++i) dweight_sum[i] += dpart[i];
  }
  EXPECT_NEAR(loss, sum / 4, 1e-5);
  expect_near(dweight, dweight_sum, 1e-4, "dweight");
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
};

using Call = void (*)(const HostOps& ops, Buffers& b, StackArena& arena);

constexpr EmbeddingShape kTable{.batch = 2, .sequence = 10, .width = 24, .vocabulary = 300, .context = 12};
constexpr RowShape kRows{20, 24};
constexpr LinearShape kLinear{20, 24, 48};
constexpr AttentionShape kAttention{.batch = 1, .sequence = 100, .heads = 2, .width = 8};
constexpr VocabularyShape kLogits{.tokens = 20, .width = 24, .vocabulary = 300};

const std::vector<Call> kCalls = {
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.embedding_forward(kTable, b.tokens(20), b.parameter(7200), b.parameter(288), b.floats(480), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.embedding_backward(kTable, b.tokens(20), b.floats(480), b.gradient(7200), b.gradient(288), arena);
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
      ops.linear_backward(kLinear, b.floats(480), b.parameter(1152), b.floats(960), b.floats(480),
                          b.gradient(1152), b.gradient(48), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.attention_forward(kAttention, b.floats(2400), b.floats(800), b.floats(200), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.attention_backward(kAttention, b.floats(2400), b.floats(800), b.floats(200), b.floats(800),
                             b.floats(2400), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena&) {
      ops.gelu_forward(b.floats(480), b.floats(480));
      ops.gelu_backward(b.floats(480), b.floats(480));
      ops.add(b.floats(480), b.floats(480));
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.cross_entropy_forward(kLogits, b.floats(480), b.parameter(7200), b.tokens(20), b.floats(20), arena);
    },
    [](const HostOps& ops, Buffers& b, StackArena& arena) {
      ops.cross_entropy_backward(kLogits, b.floats(480), b.parameter(7200), b.tokens(20), b.floats(20), 1.0f,
                                 b.floats(480), b.gradient(7200), arena);
    },
};

TEST_P(Operation, DryRunNeedsTheSameScratchAndTouchesNothing) {
  const HostOps dry_ops(workers_, GetParam(), true);
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

TEST_P(Operation, LossIsNotANumberWhenALogitIsNot) {
  const VocabularyShape shape{.tokens = 2, .width = 1, .vocabulary = 40};
  const std::vector<float> x = {1.0f, 1.0f};
  const std::vector<int32_t> targets = {0, 1};
  for (const size_t place : {size_t{0}, size_t{17}, size_t{39}}) {
    std::vector<float> weight(40, 0.5f), log_sums(2);
    weight[place] = std::nanf("");
    EXPECT_TRUE(
        std::isnan(ops_.cross_entropy_forward(shape, x, view(weight), targets, log_sums, work_.arena())));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Operation,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing
