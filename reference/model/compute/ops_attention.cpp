// Causal attention in tiles: a block of queries of one head meets the keys tile by tile, so that only one
// tile of the probabilities exists at a time, and the backward pass computes them again (as FlashAttention
// does, arXiv:2205.14135). Tiles of keys begin at multiples of their size, whatever the queries: the numbers
// of a row depend on nothing but the keys that it sees.
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/compute/internal/kernel_table.h>
#include <terrace/reference/model/compute/internal/shapes.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace terrace {

using compute::rows_of;

namespace {

constexpr uint64_t kQueries = HostOps::kQueryBlock, kKeys = HostOps::kKeyTile;

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
          .first_key_value = sample * shape.key_rows() * key_value_stride + head / group * shape.head_size,
          .first_y = token * shape.query_width() + head * shape.head_size,
          .first_number = (sample * shape.heads + head) * shape.sequence};
}

float factor_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

// Floats of one tile of scores.
uint64_t tile_floats(const AttentionShape& shape) {
  return round_up(std::min(kQueries, shape.sequence) * std::min(kKeys, shape.key_tokens()), 16);
}

// How many of `columns` keys from `first_key` on the query at `position` sees.
uint64_t visible_keys(uint64_t position, uint64_t first_key, uint64_t columns) {
  return position < first_key ? 0 : std::min(position - first_key + 1, columns);
}

// Makes a row of scores of a tile probabilities relative to the largest score so far. Returns the factor for
// the sums of the tiles before.
float weigh_row(const compute::Kernels& kernels, float factor, uint64_t visible, float* score,
                float& largest_so_far, float& sum) {
  if (visible == 0) return 1.0f;
  const float largest = std::max(largest_so_far, kernels.maximum(score, visible) * factor);
  kernels.exp_row(score, factor, largest, visible);
  const float shrink = std::exp(largest_so_far - largest);
  sum = sum * shrink + kernels.sum(score, visible);
  largest_so_far = largest;
  return shrink;
}

// The queries [first, first + rows) of one head of one sample.
struct QueryBlock {
  const float *queries, *keys, *values;
  float *y, *log_sums;
  uint64_t query_stride, key_value_stride, y_stride;
  uint64_t position, rows;  // of the first query among the keys
};

void attend(const AttentionShape& shape, const QueryBlock& block, const Products& products,
            const compute::Kernels& kernels, float* workspace, float* scores) {
  const uint64_t end = block.position + block.rows, size = shape.head_size;
  const float factor = factor_of(shape);
  float largest[kQueries], sums[kQueries];
  std::fill_n(largest, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, block.rows, 0.0f);
  for (uint64_t first = 0; first < end; first += kKeys) {
    const uint64_t columns = std::min(kKeys, end - first);
    products.multiply_here({block.rows, columns, size}, rows_of(block.queries, block.query_stride),
                           rows_of(block.keys + first * block.key_value_stride, block.key_value_stride, true),
                           {.data = scores, .stride = columns}, workspace);
    for (uint64_t row = 0; row < block.rows; ++row) {
      float* const score = scores + row * columns;
      const uint64_t visible = visible_keys(block.position + row, first, columns);
      const float shrink = weigh_row(kernels, factor, visible, score, largest[row], sums[row]);
      std::fill(score + visible, score + columns, 0.0f);
      if (first != 0 && shrink != 1.0f) kernels.scale(block.y + row * block.y_stride, shrink, size);
    }
    products.multiply_here({block.rows, size, columns}, rows_of(scores, columns),
                           rows_of(block.values + first * block.key_value_stride, block.key_value_stride),
                           {.data = block.y, .stride = block.y_stride, .accumulate = first != 0}, workspace);
  }
  for (uint64_t row = 0; row < block.rows; ++row) {
    kernels.scale(block.y + row * block.y_stride, 1.0f / sums[row], size);
    block.log_sums[row] = largest[row] + std::log(sums[row]);
  }
}

}  // namespace

// A task per head and block of queries, those that see most first.
void HostOps::attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                std::span<float> y, std::span<float> log_sums, StackArena& arena) const {
  compute::require_attention_rows(shape, inputs);
  compute::require_attention_results(shape, y.size(), log_sums.size());
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats() + tile_floats(shape));
  if (dry_run_) return;
  const uint64_t heads = shape.batch * shape.heads, blocks = divide_up(shape.sequence, kQueries);
  workers_.parallel_for(heads * blocks, [&](size_t index) {
    const uint64_t sample = index % heads / shape.heads, first = (blocks - 1 - index / heads) * kQueries;
    const Head head =
        head_of(shape, inputs.query_stride, inputs.key_value_stride, sample, index % shape.heads);
    float* const workspace = scratch.mine();
    attend(shape,
           {.queries = inputs.queries.data() + head.first_query + first * inputs.query_stride,
            .keys = inputs.keys.data() + head.first_key_value,
            .values = inputs.values.data() + head.first_key_value,
            .y = y.data() + head.first_y + first * shape.query_width(),
            .log_sums = log_sums.data() + head.first_number + first,
            .query_stride = inputs.query_stride,
            .key_value_stride = inputs.key_value_stride,
            .y_stride = shape.query_width(),
            .position = shape.past + first,
            .rows = std::min(kQueries, shape.sequence - first)},
           products_, kernels_, workspace, workspace + Products::workspace_floats());
  });
}

namespace {

// One query head of one sample: its rows, and where the gradients go. Those of keys and values are the head's
// alone.
struct HeadRows {
  const float *queries, *keys, *values, *y, *dy, *log_sums;
  float *dqueries, *dkeys, *dvalues;
  uint64_t query_stride, key_value_stride,
      gradient_stride;  // the last of dkeys and dvalues
};

// A tile of scores and of the gradients of probabilities.
struct TilePair {
  float *scores, *dscores;
  uint64_t first_query, rows, first_key, columns;
};

// Makes the scores of a tile probabilities, and the gradients of these the gradients of the scores.
void differentiate_tile(const AttentionShape& shape, const HeadRows& head, const TilePair& tile,
                        const compute::Kernels& kernels, const float* dots) {
  for (uint64_t row = 0; row < tile.rows; ++row) {
    const uint64_t query = tile.first_query + row;
    const uint64_t visible = visible_keys(query, tile.first_key, tile.columns);
    float* const score = tile.scores + row * tile.columns;
    float* const dscore = tile.dscores + row * tile.columns;
    kernels.softmax_backward(score, dscore, factor_of(shape), head.log_sums[query], dots[row], visible);
    std::fill(score + visible, score + tile.columns, 0.0f);
    std::fill(dscore + visible, dscore + tile.columns, 0.0f);
  }
}

// With P the probabilities: dV = P^T dY; dP = dY V^T; dS = P (dP - rowsum(dY Y)) / sqrt(size); dQ = dS K; dK
// = dS^T Q. dQ grows tile by tile of keys, dK and dV block by block of queries: each is one chain in
// ascending order.
void tile_backward(const AttentionShape& shape, const HeadRows& head, const TilePair& tile,
                   const Products& products, const compute::Kernels& kernels, const float* dots,
                   float* workspace) {
  const uint64_t size = shape.head_size, y_stride = shape.query_width();
  const uint64_t rows = tile.rows, columns = tile.columns;
  const uint64_t key_value = tile.first_key * head.key_value_stride;
  const uint64_t gradient = tile.first_key * head.gradient_stride;
  const Operand queries = rows_of(head.queries + tile.first_query * head.query_stride, head.query_stride);
  const Operand keys = rows_of(head.keys + key_value, head.key_value_stride);
  const Operand values = rows_of(head.values + key_value, head.key_value_stride);
  const Operand dys = rows_of(head.dy + tile.first_query * y_stride, y_stride);
  products.multiply_here({rows, columns, size}, queries, compute::transposed(keys),
                         {.data = tile.scores, .stride = columns}, workspace);
  products.multiply_here({rows, columns, size}, dys, compute::transposed(values),
                         {.data = tile.dscores, .stride = columns}, workspace);
  differentiate_tile(shape, head, tile, kernels, dots);
  products.multiply_here({rows, size, columns}, rows_of(tile.dscores, columns), keys,
                         {.data = head.dqueries + tile.first_query * head.query_stride,
                          .stride = head.query_stride,
                          .accumulate = tile.first_key != 0},
                         workspace);
  products.multiply_here({columns, size, rows}, rows_of(tile.dscores, columns, true), queries,
                         {.data = head.dkeys + gradient, .stride = head.gradient_stride, .accumulate = true},
                         workspace);
  products.multiply_here(
      {columns, size, rows}, rows_of(tile.scores, columns, true), dys,
      {.data = head.dvalues + gradient, .stride = head.gradient_stride, .accumulate = true}, workspace);
}

void head_backward(const AttentionShape& shape, const HeadRows& head, const Products& products,
                   const compute::Kernels& kernels, float* workspace, float* scores, float* dscores) {
  const uint64_t size = shape.head_size, y_stride = shape.query_width();
  for (uint64_t token = 0; token < shape.sequence; ++token) {
    std::fill_n(head.dkeys + token * head.gradient_stride, size, 0.0f);
    std::fill_n(head.dvalues + token * head.gradient_stride, size, 0.0f);
  }
  for (uint64_t first = 0; first < shape.sequence; first += kQueries) {
    const uint64_t rows = std::min(kQueries, shape.sequence - first), end = first + rows;
    float dots[kQueries];
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t at = (first + row) * y_stride;
      dots[row] = kernels.dot(head.dy + at, head.y + at, size);
    }
    for (uint64_t first_key = 0; first_key < end; first_key += kKeys) {
      const TilePair tile{scores, dscores, first, rows, first_key, std::min(kKeys, end - first_key)};
      tile_backward(shape, head, tile, products, kernels, dots, workspace);
    }
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
  const uint64_t score_floats = tile_floats(shape);
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
