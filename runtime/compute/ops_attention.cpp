// Causal attention, a task per head of a sample, a block of queries at a time: only that block's rows of the
// probabilities exist, and the backward pass computes them again (as FlashAttention does, arXiv:2205.14135).
#include <terrace/runtime/compute/internal/kernel_table.h>
#include <terrace/runtime/compute/ops.h>

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

// Where the rows of one query head of one sample are: elements of its first token.
struct Head {
  uint64_t first_query;
  uint64_t first_key_value;
  uint64_t first_y;
  uint64_t first_number;  // of the log sums
};

Head head_of(const AttentionShape& shape, uint64_t query_stride, uint64_t key_value_stride, uint64_t sample,
             uint64_t head) {
  const uint64_t group = shape.heads / shape.key_value_heads, token = sample * shape.sequence;
  return {.first_query = token * query_stride + head * shape.head_size,
          .first_key_value = token * key_value_stride + head / group * shape.head_size,
          .first_y = token * shape.query_width() + head * shape.head_size,
          .first_number = (sample * shape.heads + head) * shape.sequence};
}

float factor_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

template <typename Float>
void check(const AttentionShape& shape, const AttentionRows<Float>& rows) {
  TERRACE_ASSERT(shape.key_value_heads != 0 && shape.heads % shape.key_value_heads == 0,
                 "the heads are not a multiple of the key-value heads");
  const auto holds = [&](size_t elements, uint64_t stride, uint64_t width) {
    return stride >= width && elements >= (shape.tokens() - 1) * stride + width;
  };
  TERRACE_ASSERT(holds(rows.queries.size(), rows.query_stride, shape.query_width()) &&
                     holds(rows.keys.size(), rows.key_value_stride, shape.key_value_width()) &&
                     holds(rows.values.size(), rows.key_value_stride, shape.key_value_width()),
                 "attention's rows have another size");
}

void check(const AttentionShape& shape, size_t y, size_t log_sums) {
  TERRACE_ASSERT(y == shape.tokens() * shape.query_width() && log_sums == shape.tokens() * shape.heads,
                 "attention's results have another size");
}

Operand matrix(const float* data, uint64_t stride, bool transposed = false) {
  return {.data = data, .stride = stride, .type = DataType::fp32, .transposed = transposed};
}

}  // namespace

void HostOps::attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                std::span<float> y, std::span<float> log_sums, StackArena& arena) const {
  check(shape, inputs);
  check(shape, y.size(), log_sums.size());
  const StackArena::Frame frame(arena);
  const uint64_t score_floats = std::min(kQueryBlock, shape.sequence) * shape.sequence;
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + score_floats);
  if (dry_run_) return;
  const uint64_t size = shape.head_size, y_stride = shape.query_width();
  const float factor = factor_of(shape);
  workers_.parallel_for(shape.batch * shape.heads, [&](size_t index) {
    const Head head = head_of(shape, inputs.query_stride, inputs.key_value_stride, index / shape.heads,
                              index % shape.heads);
    const float* const queries = inputs.queries.data() + head.first_query;
    const Operand keys = matrix(inputs.keys.data() + head.first_key_value, inputs.key_value_stride, true);
    const Operand values = matrix(inputs.values.data() + head.first_key_value, inputs.key_value_stride);
    float* const workspace = scratch.mine();
    float* const scores = workspace + Products::workspace_floats();
    for (uint64_t first = 0; first < shape.sequence; first += kQueryBlock) {
      const uint64_t end = std::min(first + kQueryBlock, shape.sequence), rows = end - first;
      products_.multiply_here({rows, end, size},
                              matrix(queries + first * inputs.query_stride, inputs.query_stride), keys,
                              {.data = scores, .stride = end}, workspace);
      float sums[kQueryBlock];
      for (uint64_t row = 0; row < rows; ++row) {
        float* const score = scores + row * end;
        const uint64_t visible = first + row + 1;
        const float largest = kernels_.maximum(score, visible) * factor;
        kernels_.exp_row(score, factor, largest, visible);
        std::fill(score + visible, score + end, 0.0f);
        sums[row] = kernels_.sum(score, visible);
        log_sums[head.first_number + first + row] = largest + std::log(sums[row]);
      }
      float* const result = y.data() + head.first_y + first * y_stride;
      products_.multiply_here({rows, size, end}, matrix(scores, end), values,
                              {.data = result, .stride = y_stride}, workspace);
      for (uint64_t row = 0; row < rows; ++row) {
        kernels_.scale(result + row * y_stride, 1.0f / sums[row], size);
      }
    }
  });
}

// With P the probabilities: dV = P^T dY; dP = dY V^T; dS = P (dP - rowsum(dY Y)) / sqrt(size); dQ = dS K; dK
// = dS^T Q. dK and dV grow head by head of their group and block by block of queries: one chain in ascending
// order. So a task takes all query heads of one key-value head.
void HostOps::attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                 std::span<const float> y, std::span<const float> log_sums,
                                 std::span<const float> dy, const AttentionRows<float>& gradients,
                                 StackArena& arena) const {
  check(shape, inputs);
  check(shape, gradients);
  check(shape, y.size(), log_sums.size());
  TERRACE_ASSERT(gradients.query_stride == inputs.query_stride &&
                     gradients.key_value_stride == inputs.key_value_stride && dy.size() == y.size(),
                 "attention's gradients have another size");
  const StackArena::Frame frame(arena);
  const uint64_t score_floats = round_up(std::min(kQueryBlock, shape.sequence) * shape.sequence, 16);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + 2 * score_floats);
  if (dry_run_) return;
  const uint64_t size = shape.head_size, y_stride = shape.query_width();
  const uint64_t stride = inputs.query_stride, key_value_stride = inputs.key_value_stride;
  const uint64_t group = shape.heads / shape.key_value_heads;
  const float factor = factor_of(shape);
  const auto one_head = [&](const Head& head, float* workspace) {
    const float* const queries = inputs.queries.data() + head.first_query;
    const float* const keys = inputs.keys.data() + head.first_key_value;
    const float* const values = inputs.values.data() + head.first_key_value;
    float* const dqueries = gradients.queries.data() + head.first_query;
    float* const dkeys = gradients.keys.data() + head.first_key_value;
    float* const dvalues = gradients.values.data() + head.first_key_value;
    float* const scores = workspace + Products::workspace_floats();
    float* const dscores = scores + score_floats;
    for (uint64_t first = 0; first < shape.sequence; first += kQueryBlock) {
      const uint64_t end = std::min(first + kQueryBlock, shape.sequence), rows = end - first;
      const uint64_t first_y = head.first_y + first * y_stride;
      const Operand block_queries = matrix(queries + first * stride, stride);
      const Operand block_dy = matrix(dy.data() + first_y, y_stride);
      products_.multiply_here({rows, end, size}, block_queries, matrix(keys, key_value_stride, true),
                              {.data = scores, .stride = end}, workspace);
      products_.multiply_here({rows, end, size}, block_dy, matrix(values, key_value_stride, true),
                              {.data = dscores, .stride = end}, workspace);
      for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t visible = first + row + 1, at = first_y + row * y_stride;
        const float dot = kernels_.dot(dy.data() + at, y.data() + at, size);
        kernels_.softmax_backward(scores + row * end, dscores + row * end, factor,
                                  log_sums[head.first_number + first + row], dot, visible);
        std::fill(scores + row * end + visible, scores + (row + 1) * end, 0.0f);
        std::fill(dscores + row * end + visible, dscores + (row + 1) * end, 0.0f);
      }
      products_.multiply_here({rows, size, end}, matrix(dscores, end), matrix(keys, key_value_stride),
                              {.data = dqueries + first * stride, .stride = stride}, workspace);
      products_.multiply_here({end, size, rows}, matrix(dscores, end, true), block_queries,
                              {.data = dkeys, .stride = key_value_stride, .accumulate = true}, workspace);
      products_.multiply_here({end, size, rows}, matrix(scores, end, true), block_dy,
                              {.data = dvalues, .stride = key_value_stride, .accumulate = true}, workspace);
    }
  };
  workers_.parallel_for(shape.batch * shape.key_value_heads, [&](size_t index) {
    const uint64_t sample = index / shape.key_value_heads;
    const uint64_t first_head = index % shape.key_value_heads * group;
    const Head any = head_of(shape, stride, key_value_stride, sample, first_head);
    for (uint64_t token = 0; token < shape.sequence; ++token) {
      const uint64_t at = any.first_key_value + token * key_value_stride;
      std::fill_n(gradients.keys.data() + at, size, 0.0f);
      std::fill_n(gradients.values.data() + at, size, 0.0f);
    }
    for (uint64_t head = first_head; head < first_head + group; ++head) {
      one_head(head_of(shape, stride, key_value_stride, sample, head), scratch.mine());
    }
  });
}

}  // namespace terrace
