// Causal attention, a task per head of a sample, a block of queries at a time: only that block's rows of the
// probabilities exist, and the backward pass computes them again (as FlashAttention does, arXiv:2205.14135).
#include <terrace/runtime/compute/internal/kernel_table.h>
#include <terrace/runtime/compute/ops.h>

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

// Where the rows of one head of one sample are.
struct Head {
  uint64_t size;          // elements of one head's query, key or value
  uint64_t qkv_stride;    // 3 * width
  uint64_t y_stride;      // width
  uint64_t first_qkv;     // element of the first token's query
  uint64_t first_y;       // element of the first token's output
  uint64_t first_number;  // of the log sums
  float factor;           // 1 / sqrt(size)
};

Head head_of(const AttentionShape& shape, uint64_t index) {
  const uint64_t sample = index / shape.heads, head = index % shape.heads;
  const uint64_t size = shape.width / shape.heads;
  return {.size = size,
          .qkv_stride = 3 * shape.width,
          .y_stride = shape.width,
          .first_qkv = sample * shape.sequence * 3 * shape.width + head * size,
          .first_y = sample * shape.sequence * shape.width + head * size,
          .first_number = index * shape.sequence,
          .factor = 1.0f / std::sqrt(static_cast<float>(size))};
}

void check(const AttentionShape& shape, size_t qkv, size_t y, size_t log_sums) {
  TERRACE_ASSERT(shape.heads != 0 && shape.width % shape.heads == 0,
                 "the width is not a multiple of the heads");
  TERRACE_ASSERT(qkv == shape.tokens() * 3 * shape.width && y == shape.tokens() * shape.width &&
                     log_sums == shape.tokens() * shape.heads,
                 "attention's rows have another size");
}

Operand matrix(const float* data, uint64_t stride, bool transposed = false) {
  return {.data = data, .stride = stride, .type = DataType::fp32, .transposed = transposed};
}

}  // namespace

void HostOps::attention_forward(const AttentionShape& shape, std::span<const float> qkv, std::span<float> y,
                                std::span<float> log_sums, StackArena& arena) const {
  check(shape, qkv.size(), y.size(), log_sums.size());
  const StackArena::Frame frame(arena);
  const uint64_t score_floats = std::min(kQueryBlock, shape.sequence) * shape.sequence;
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + score_floats);
  if (dry_run_) return;
  workers_.parallel_for(shape.batch * shape.heads, [&](size_t index) {
    const Head head = head_of(shape, index);
    const float* const queries = qkv.data() + head.first_qkv;
    const float* const keys = queries + shape.width;
    const float* const values = keys + shape.width;
    float* const workspace = scratch.mine();
    float* const scores = workspace + Products::workspace_floats();
    for (uint64_t first = 0; first < shape.sequence; first += kQueryBlock) {
      const uint64_t end = std::min(first + kQueryBlock, shape.sequence), rows = end - first;
      products_.multiply_here(
          {rows, end, head.size}, matrix(queries + first * head.qkv_stride, head.qkv_stride),
          matrix(keys, head.qkv_stride, true), {.data = scores, .stride = end}, workspace);
      float sums[kQueryBlock];
      for (uint64_t row = 0; row < rows; ++row) {
        float* const score = scores + row * end;
        const uint64_t visible = first + row + 1;
        const float largest = kernels_.maximum(score, visible) * head.factor;
        kernels_.exp_row(score, head.factor, largest, visible);
        std::fill(score + visible, score + end, 0.0f);
        sums[row] = kernels_.sum(score, visible);
        log_sums[head.first_number + first + row] = largest + std::log(sums[row]);
      }
      float* const result = y.data() + head.first_y + first * head.y_stride;
      products_.multiply_here({rows, head.size, end}, matrix(scores, end), matrix(values, head.qkv_stride),
                              {.data = result, .stride = head.y_stride}, workspace);
      for (uint64_t row = 0; row < rows; ++row) {
        kernels_.scale(result + row * head.y_stride, 1.0f / sums[row], head.size);
      }
    }
  });
}

// With P the probabilities: dV = P^T dY; dP = dY V^T; dS = P (dP - rowsum(dY Y)) / sqrt(size); dQ = dS K; dK
// = dS^T Q. dK and dV grow block by block of queries: one chain over the queries in ascending order.
void HostOps::attention_backward(const AttentionShape& shape, std::span<const float> qkv,
                                 std::span<const float> y, std::span<const float> log_sums,
                                 std::span<const float> dy, std::span<float> dqkv, StackArena& arena) const {
  check(shape, qkv.size(), y.size(), log_sums.size());
  TERRACE_ASSERT(dqkv.size() == qkv.size() && dy.size() == y.size(),
                 "attention's gradients have another size");
  const StackArena::Frame frame(arena);
  const uint64_t score_floats = round_up(std::min(kQueryBlock, shape.sequence) * shape.sequence, 16);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + 2 * score_floats);
  if (dry_run_) return;
  workers_.parallel_for(shape.batch * shape.heads, [&](size_t index) {
    const Head head = head_of(shape, index);
    const uint64_t stride = head.qkv_stride;
    const float* const queries = qkv.data() + head.first_qkv;
    const float* const keys = queries + shape.width;
    const float* const values = keys + shape.width;
    float* const dqueries = dqkv.data() + head.first_qkv;
    float* const dkeys = dqueries + shape.width;
    float* const dvalues = dkeys + shape.width;
    float* const workspace = scratch.mine();
    float* const scores = workspace + Products::workspace_floats();
    float* const dscores = scores + score_floats;
    for (uint64_t token = 0; token < shape.sequence; ++token) {
      std::fill_n(dkeys + token * stride, head.size, 0.0f);
      std::fill_n(dvalues + token * stride, head.size, 0.0f);
    }
    for (uint64_t first = 0; first < shape.sequence; first += kQueryBlock) {
      const uint64_t end = std::min(first + kQueryBlock, shape.sequence), rows = end - first;
      const uint64_t first_y = head.first_y + first * head.y_stride;
      const Operand block_queries = matrix(queries + first * stride, stride);
      const Operand block_dy = matrix(dy.data() + first_y, head.y_stride);
      products_.multiply_here({rows, end, head.size}, block_queries, matrix(keys, stride, true),
                              {.data = scores, .stride = end}, workspace);
      products_.multiply_here({rows, end, head.size}, block_dy, matrix(values, stride, true),
                              {.data = dscores, .stride = end}, workspace);
      for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t visible = first + row + 1, at = first_y + row * head.y_stride;
        const float dot = kernels_.dot(dy.data() + at, y.data() + at, head.size);
        kernels_.softmax_backward(scores + row * end, dscores + row * end, head.factor,
                                  log_sums[head.first_number + first + row], dot, visible);
        std::fill(scores + row * end + visible, scores + (row + 1) * end, 0.0f);
        std::fill(dscores + row * end + visible, dscores + (row + 1) * end, 0.0f);
      }
      products_.multiply_here({rows, head.size, end}, matrix(dscores, end), matrix(keys, stride),
                              {.data = dqueries + first * stride, .stride = stride}, workspace);
      products_.multiply_here({end, head.size, rows}, matrix(dscores, end, true), block_queries,
                              {.data = dkeys, .stride = stride, .accumulate = true}, workspace);
      products_.multiply_here({end, head.size, rows}, matrix(scores, end, true), block_dy,
                              {.data = dvalues, .stride = stride, .accumulate = true}, workspace);
    }
  });
}

}  // namespace terrace
