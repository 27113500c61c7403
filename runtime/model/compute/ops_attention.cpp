// Causal attention, a task per head of a sample, a block of queries at a time: only that block's rows of the
// probabilities exist, and the backward pass computes them again (as FlashAttention does, arXiv:2205.14135).
#include <terrace/runtime/model/compute/host_ops.h>
#include <terrace/runtime/model/compute/internal/kernel_table.h>
#include <terrace/runtime/model/compute/internal/shapes.h>

#include <algorithm>
#include <cmath>

namespace terrace {

using compute::rows_of;

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

}  // namespace

void HostOps::attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                std::span<float> y, std::span<float> log_sums, StackArena& arena) const {
  compute::require_attention_rows(shape, inputs);
  compute::require_attention_results(shape, y.size(), log_sums.size());
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
    const Operand keys = rows_of(inputs.keys.data() + head.first_key_value, inputs.key_value_stride, true);
    const Operand values = rows_of(inputs.values.data() + head.first_key_value, inputs.key_value_stride);
    float* const workspace = scratch.mine();
    float* const scores = workspace + Products::workspace_floats();
    for (uint64_t first = 0; first < shape.sequence; first += kQueryBlock) {
      const uint64_t end = std::min(first + kQueryBlock, shape.sequence), rows = end - first;
      products_.multiply_here({rows, end, size},
                              rows_of(queries + first * inputs.query_stride, inputs.query_stride), keys,
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
      products_.multiply_here({rows, size, end}, rows_of(scores, end), values,
                              {.data = result, .stride = y_stride}, workspace);
      for (uint64_t row = 0; row < rows; ++row) {
        kernels_.scale(result + row * y_stride, 1.0f / sums[row], size);
      }
    }
  });
}

namespace {

// One query head of one sample: its rows, and where the gradients go. Those of keys and values are the head's
// alone.
struct HeadRows {
  const float *queries, *keys, *values, *y, *dy, *log_sums;
  float *dqueries, *dkeys, *dvalues;
  uint64_t query_stride, key_value_stride, gradient_stride;  // the last of dkeys and dvalues
};

// With P the probabilities: dV = P^T dY; dP = dY V^T; dS = P (dP - rowsum(dY Y)) / sqrt(size); dQ = dS K; dK
// = dS^T Q. dK and dV grow block by block of queries: one chain over the queries in ascending order.
void head_backward(const AttentionShape& shape, const HeadRows& head, const Products& products,
                   const compute::Kernels& kernels, float* workspace, float* scores, float* dscores) {
  const uint64_t size = shape.head_size, y_stride = shape.query_width(), stride = head.query_stride;
  const float factor = factor_of(shape);
  for (uint64_t token = 0; token < shape.sequence; ++token) {
    std::fill_n(head.dkeys + token * head.gradient_stride, size, 0.0f);
    std::fill_n(head.dvalues + token * head.gradient_stride, size, 0.0f);
  }
  for (uint64_t first = 0; first < shape.sequence; first += HostOps::kQueryBlock) {
    const uint64_t end = std::min(first + HostOps::kQueryBlock, shape.sequence), rows = end - first;
    const Operand block_queries = rows_of(head.queries + first * stride, stride);
    const Operand block_dy = rows_of(head.dy + first * y_stride, y_stride);
    products.multiply_here({rows, end, size}, block_queries, rows_of(head.keys, head.key_value_stride, true),
                           {.data = scores, .stride = end}, workspace);
    products.multiply_here({rows, end, size}, block_dy, rows_of(head.values, head.key_value_stride, true),
                           {.data = dscores, .stride = end}, workspace);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t visible = first + row + 1, at = (first + row) * y_stride;
      const float dot = kernels.dot(head.dy + at, head.y + at, size);
      kernels.softmax_backward(scores + row * end, dscores + row * end, factor, head.log_sums[first + row],
                               dot, visible);
      std::fill(scores + row * end + visible, scores + (row + 1) * end, 0.0f);
      std::fill(dscores + row * end + visible, dscores + (row + 1) * end, 0.0f);
    }
    products.multiply_here({rows, size, end}, rows_of(dscores, end),
                           rows_of(head.keys, head.key_value_stride),
                           {.data = head.dqueries + first * stride, .stride = stride}, workspace);
    products.multiply_here({end, size, rows}, rows_of(dscores, end, true), block_queries,
                           {.data = head.dkeys, .stride = head.gradient_stride, .accumulate = true},
                           workspace);
    products.multiply_here({end, size, rows}, rows_of(scores, end, true), block_dy,
                           {.data = head.dvalues, .stride = head.gradient_stride, .accumulate = true},
                           workspace);
  }
}

}  // namespace

// A task per query head. Where heads share keys and values, each leaves its gradients of them apart, [batch,
// heads, sequence, head_size], and those of a group are added in the order of its heads.
void HostOps::attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                 std::span<const float> y, std::span<const float> log_sums,
                                 std::span<const float> dy, const AttentionRows<float>& gradients,
                                 StackArena& arena) const {
  compute::require_attention_rows(shape, inputs);
  compute::require_attention_results(shape, y.size(), log_sums.size());
  compute::require_attention_gradients(shape, inputs, dy.size(), gradients);
  const StackArena::Frame frame(arena);
  const uint64_t score_floats = round_up(std::min(kQueryBlock, shape.sequence) * shape.sequence, 16);
  const uint64_t size = shape.head_size, head_floats = shape.sequence * size;
  const bool shared = shape.heads != shape.key_value_heads;
  const uint64_t apart_floats = shared ? shape.batch * shape.heads * head_floats : 0;
  const std::span<float> apart_keys = arena.allocate<float>(apart_floats);
  const std::span<float> apart_values = arena.allocate<float>(apart_floats);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + 2 * score_floats);
  if (dry_run_) return;
  const uint64_t stride = inputs.query_stride, key_value_stride = inputs.key_value_stride;
  workers_.parallel_for(shape.batch * shape.heads, [&](size_t index) {
    const Head at = head_of(shape, stride, key_value_stride, index / shape.heads, index % shape.heads);
    HeadRows head{.queries = inputs.queries.data() + at.first_query,
                  .keys = inputs.keys.data() + at.first_key_value,
                  .values = inputs.values.data() + at.first_key_value,
                  .y = y.data() + at.first_y,
                  .dy = dy.data() + at.first_y,
                  .log_sums = log_sums.data() + at.first_number,
                  .dqueries = gradients.queries.data() + at.first_query,
                  .dkeys = gradients.keys.data() + at.first_key_value,
                  .dvalues = gradients.values.data() + at.first_key_value,
                  .query_stride = stride,
                  .key_value_stride = key_value_stride,
                  .gradient_stride = key_value_stride};
    if (shared) {
      head.dkeys = apart_keys.data() + index * head_floats;
      head.dvalues = apart_values.data() + index * head_floats;
      head.gradient_stride = size;
    }
    float* const workspace = scratch.mine();
    float* const scores = workspace + Products::workspace_floats();
    head_backward(shape, head, products_, kernels_, workspace, scores, scores + score_floats);
  });
  if (!shared) return;
  add_groups(shape, apart_keys, key_value_stride, gradients.keys);
  add_groups(shape, apart_values, key_value_stride, gradients.values);
}

void HostOps::add_groups(const AttentionShape& shape, std::span<const float> apart, uint64_t stride,
                         std::span<float> sums) const {
  const uint64_t size = shape.head_size, group = shape.heads / shape.key_value_heads;
  for_row_blocks(shape.tokens(), shape.query_width(), [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      const uint64_t sample = row / shape.sequence, token = row % shape.sequence;
      const auto part = [&](uint64_t head) {
        return apart.data() + ((sample * shape.heads + head) * shape.sequence + token) * size;
      };
      for (uint64_t shared_head = 0; shared_head < shape.key_value_heads; ++shared_head) {
        float* const to = sums.data() + row * stride + shared_head * size;
        std::copy_n(part(shared_head * group), size, to);
        for (uint64_t head = 1; head < group; ++head)
          kernels_.add(to, part(shared_head * group + head), to, size);
      }
    }
  });
}

}  // namespace terrace
