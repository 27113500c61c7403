// Causal attention that never stores a row of probabilities (FlashAttention, arXiv:2205.14135), in fp32. A
// block takes a tile of the queries of one head, or, for the gradients of keys and values, a tile of the keys
// of one shared head; the other side goes by in tiles of the same size.
//
// Every chain over head elements, keys or queries is one of fused multiply-adds in ascending order, which is
// what the host does: from the same log_sums the backward pass gives the host's bits.
#include <cmath>
#include <limits>

#include <terrace/base/error.h>

#include "internal/attention_tiles.cuh"
#include "internal/elements.cuh"

namespace terrace {
namespace compute {

struct AttentionCall {
  uint64_t batch, sequence, heads, key_value_heads, size, query_stride, key_value_stride;
  uint64_t past, key_rows;  // keys before the first query, rows of keys from sample to sample
  float factor;
  const float *queries, *keys, *values;
  const float *y, *dy, *dots;         // backward; dots as log_sums
  const float* log_sums;              // backward
  float *result, *result_log_sums;    // forward
  float *dqueries, *dkeys, *dvalues;  // backward
};

// Where the rows of one query head of one sample begin, in elements.
struct HeadPlace {
  uint64_t query, key_value, y, number;
};

__device__ inline HeadPlace place_of(const AttentionCall& call, uint64_t sample, uint64_t head) {
  const uint64_t token = sample * call.sequence, group = call.heads / call.key_value_heads;
  return {.query = token * call.query_stride + head * call.size,
          .key_value = sample * call.key_rows * call.key_value_stride + head / group * call.size,
          .y = (token * call.heads + head) * call.size,
          .number = (sample * call.heads + head) * call.sequence};
}

// ---- Forward

template <typename T>
struct RunningRows {
  float largest[T::kRows], sum[T::kRows];
  typename T::Columns columns;

  __device__ RunningRows() {
    TERRACE_UNROLL
    for (unsigned i = 0; i < T::kRows; ++i) {
      largest[i] = -std::numeric_limits<float>::infinity();
      sum[i] = 0.0f;
      TERRACE_UNROLL
      for (float& column : columns[i]) column = 0.0f;
    }
  }
};

// Makes scores of a tile of keys probabilities, relative to the largest score so far. Every row sees the first
// key, so that its largest score is finite; a tile of which it sees nothing changes no bit. `first_query` is
// the position of the tile's first query.
template <typename T>
__device__ inline void weigh_keys(const AttentionCall& call, uint64_t first_query, uint64_t first_key,
                                  typename T::Pairs& scores, RunningRows<T>& rows) {
  TERRACE_UNROLL
  for (unsigned i = 0; i < T::kRows; ++i) {
    const uint64_t query = first_query + row_of_thread(T::kRows, i);
    float largest = rows.largest[i], sum = 0.0f;
    TERRACE_UNROLL
    for (unsigned j = 0; j < T::kRows; ++j) {
      scores[i][j] *= call.factor;
      if (first_key + other_of_thread(j) <= query && scores[i][j] > largest) largest = scores[i][j];
    }
    largest = largest_of_row(largest);
    TERRACE_UNROLL
    for (unsigned j = 0; j < T::kRows; ++j) {
      scores[i][j] = first_key + other_of_thread(j) <= query ? exp_of(scores[i][j] - largest) : 0.0f;
      sum += scores[i][j];
    }
    const float shrink = exp_of(rows.largest[i] - largest);
    rows.sum[i] = rows.sum[i] * shrink + sum_of_row(sum);
    rows.largest[i] = largest;
    TERRACE_UNROLL
    for (float& column : rows.columns[i]) column *= shrink;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock, 2) attend(AttentionCall call) {
  TERRACE_SHARED(float, slices, T::kSlices);
  TERRACE_SHARED(float, weights, T::kWeights);
  TERRACE_SHARED(float, slice_of_values, T::kSliceOfRows);
  const uint64_t tiles = divide_up(call.sequence, T::kTile);
  for (uint64_t item = blockIdx.x; item < call.batch * call.heads * tiles; item += gridDim.x) {
    const uint64_t head = item / tiles, first = (tiles - 1 - item % tiles) * T::kTile;  // the longest first
    const uint64_t end = call.sequence < first + T::kTile ? call.sequence : first + T::kTile;
    const uint64_t key_end = call.past + end;  // of what the last query sees
    const HeadPlace at = place_of(call, head / call.heads, head % call.heads);
    const HeadRows queries{call.queries + at.query, call.query_stride, first, call.sequence};
    HeadRows keys{call.keys + at.key_value, call.key_value_stride, 0, key_end};
    HeadRows values{call.values + at.key_value, call.key_value_stride, 0, key_end};
    RunningRows<T> rows;
    for (uint64_t first_key = 0; first_key < key_end; first_key += T::kTile) {
      keys.first = values.first = first_key;
      typename T::Pairs scores;
      multiply_rows<T>(queries, keys, call.size, slices, scores);
      weigh_keys<T>(call, call.past + first, first_key, scores, rows);
      store_weights<T>(scores, weights);
      add_weighted_rows<T>(weights, values, call.size, slice_of_values, rows.columns);
    }
    TERRACE_UNROLL
    for (unsigned i = 0; i < T::kRows; ++i) {
      const uint64_t query = first + row_of_thread(T::kRows, i);
      if (query >= call.sequence) continue;
      const float inverse_sum = 1.0f / rows.sum[i];
      for_columns<T>(call.size, [&](unsigned column, unsigned c) {
        call.result[at.y + query * call.heads * call.size + column] = rows.columns[i][c] * inverse_sum;
      });
      if (threadIdx.x % kRowThreads == 0)
        call.result_log_sums[at.number + query] = rows.largest[i] + logf(rows.sum[i]);
    }
  }
}

// ---- Backward. With P the probabilities: dV = P^T dY; dP = dY V^T; dS = P (dP - rowsum(dY Y)) factor; dQ =
// dS K; dK = dS^T Q.

// dots[head, token] = the sum of dY Y over a head's elements.
__global__ void dot_rows(AttentionCall call, float* dots) {
  const uint64_t rows = call.batch * call.sequence * call.heads;
  for_rows(rows, [&](uint64_t row, unsigned lane) {  // as y has them: token by token, head by head
    const uint64_t size = row < rows ? call.size : 0, first = row * call.size;
    const float dot =
        sum_over_row(size, lane, [&](uint64_t j) { return call.dy[first + j] * call.y[first + j]; });
    if (lane != 0 || size == 0) return;
    const uint64_t token = row / call.heads, sample = token / call.sequence;
    dots[(sample * call.heads + row % call.heads) * call.sequence + token % call.sequence] = dot;
  });
}

// Makes a score a probability, and dp the gradient of the score. Without a pair both are 0.
__device__ inline void differentiate(const AttentionCall& call, bool is_pair, uint64_t number, float& score,
                                     float& dp) {
  score = is_pair ? exp_of(score * call.factor - call.log_sums[number]) : 0.0f;
  dp = is_pair ? score * (dp - call.dots[number]) * call.factor : 0.0f;
}

template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock, 2) query_gradients(AttentionCall call) {
  TERRACE_SHARED(float, slices, T::kSlices);
  TERRACE_SHARED(float, weights, T::kWeights);
  TERRACE_SHARED(float, slice_of_keys, T::kSliceOfRows);
  const uint64_t tiles = divide_up(call.sequence, T::kTile), y_stride = call.heads * call.size;
  for (uint64_t item = blockIdx.x; item < call.batch * call.heads * tiles; item += gridDim.x) {
    const uint64_t head = item / tiles, first = (tiles - 1 - item % tiles) * T::kTile;
    const HeadPlace at = place_of(call, head / call.heads, head % call.heads);
    const HeadRows queries{call.queries + at.query, call.query_stride, first, call.sequence};
    const HeadRows dys{call.dy + at.y, y_stride, first, call.sequence};
    HeadRows keys{call.keys + at.key_value, call.key_value_stride, 0, call.sequence};
    HeadRows values{call.values + at.key_value, call.key_value_stride, 0, call.sequence};
    typename T::Columns sums;
    clear<T>(sums);
    for (uint64_t first_key = 0; first_key <= first; first_key += T::kTile) {
      keys.first = values.first = first_key;
      typename T::Pairs scores, dps;
      multiply_rows<T>(queries, keys, call.size, slices, scores);
      multiply_rows<T>(dys, values, call.size, slices, dps);
      TERRACE_UNROLL
      for (unsigned i = 0; i < T::kRows; ++i) {
        const uint64_t query = first + row_of_thread(T::kRows, i);
        TERRACE_UNROLL
        for (unsigned j = 0; j < T::kRows; ++j) {
          const bool is_pair = query < call.sequence && first_key + other_of_thread(j) <= query;
          differentiate(call, is_pair, at.number + query, scores[i][j], dps[i][j]);
        }
      }
      store_weights<T>(dps, weights);
      add_weighted_rows<T>(weights, keys, call.size, slice_of_keys, sums);
    }
    TERRACE_UNROLL
    for (unsigned i = 0; i < T::kRows; ++i) {
      const uint64_t query = first + row_of_thread(T::kRows, i);
      if (query >= call.sequence) continue;
      for_columns<T>(call.size, [&](unsigned column, unsigned c) {
        call.dqueries[at.query + query * call.query_stride + column] = sums[i][c];
      });
    }
  }
}

// The thread's columns of a tile of keys' or values' gradients: those of the group's first head, or added to
// those of the heads before.
template <typename T>
__device__ inline void store_gradients(const AttentionCall& call, uint64_t key_value, uint64_t first_key,
                                       bool is_first, const typename T::Columns& sums, float* gradients) {
  TERRACE_UNROLL
  for (unsigned i = 0; i < T::kRows; ++i) {
    const uint64_t key = first_key + row_of_thread(T::kRows, i);
    if (key >= call.sequence) continue;
    for_columns<T>(call.size, [&](unsigned column, unsigned c) {
      float& gradient = gradients[key_value + key * call.key_value_stride + column];
      gradient = is_first ? sums[i][c] : gradient + sums[i][c];
    });
  }
}

// The query heads of a group one after the other, each a chain of its own, added in their order.
template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock, 2) key_value_gradients(AttentionCall call) {
  TERRACE_SHARED(float, slices, T::kSlices);
  TERRACE_SHARED(float, weights, T::kWeights);
  TERRACE_SHARED(float, slice_of_rows, T::kSliceOfRows);
  const uint64_t tiles = divide_up(call.sequence, T::kTile), y_stride = call.heads * call.size;
  const uint64_t group = call.heads / call.key_value_heads;
  for (uint64_t item = blockIdx.x; item < call.batch * call.key_value_heads * tiles; item += gridDim.x) {
    const uint64_t shared_head = item / tiles, first = item % tiles * T::kTile;  // the longest first
    const uint64_t sample = shared_head / call.key_value_heads;
    const uint64_t first_head = shared_head % call.key_value_heads * group;
    const uint64_t key_value = place_of(call, sample, first_head).key_value;
    const HeadRows keys{call.keys + key_value, call.key_value_stride, first, call.sequence};
    const HeadRows values{call.values + key_value, call.key_value_stride, first, call.sequence};
    for (uint64_t head = first_head; head < first_head + group; ++head) {
      const HeadPlace at = place_of(call, sample, head);
      HeadRows queries{call.queries + at.query, call.query_stride, 0, call.sequence};
      HeadRows dys{call.dy + at.y, y_stride, 0, call.sequence};
      typename T::Columns dk, dv;
      clear<T>(dk);
      clear<T>(dv);
      for (uint64_t first_query = first; first_query < call.sequence; first_query += T::kTile) {
        queries.first = dys.first = first_query;
        typename T::Pairs scores, dps;
        multiply_rows<T>(keys, queries, call.size, slices, scores);
        multiply_rows<T>(values, dys, call.size, slices, dps);
        TERRACE_UNROLL
        for (unsigned i = 0; i < T::kRows; ++i) {
          const uint64_t key = first + row_of_thread(T::kRows, i);
          TERRACE_UNROLL
          for (unsigned j = 0; j < T::kRows; ++j) {
            const uint64_t query = first_query + other_of_thread(j);
            differentiate(call, query < call.sequence && key <= query, at.number + query, scores[i][j],
                          dps[i][j]);
          }
        }
        store_weights<T>(scores, weights);
        add_weighted_rows<T>(weights, dys, call.size, slice_of_rows, dv);
        __syncthreads();
        store_weights<T>(dps, weights);
        add_weighted_rows<T>(weights, queries, call.size, slice_of_rows, dk);
      }
      store_gradients<T>(call, key_value, first, head == first_head, dk, call.dkeys);
      store_gradients<T>(call, key_value, first, head == first_head, dv, call.dvalues);
    }
  }
}

// ---- Which tiles: what a thread has of them has to fit into its registers.

template <typename Body>
void with_tile(uint64_t size, Body body) {
  if (size <= 64) {
    body(Tile<64, 4>{});
  } else if (size <= 128) {
    body(Tile<128, 4>{});
  } else {
    body(Tile<256, 2>{});
  }
}

// A model that has larger ones is refused by the dry run of its plan.
void require_small_heads(const AttentionShape& shape) {
  if (shape.head_size <= CudaOps::kLargestHead) return;
  throw Error(
      ErrorKind::config,
      {"cannot compute attention on a GPU", "heads of " + std::to_string(shape.head_size) + " elements",
       "its kernels hold heads of at most " + std::to_string(CudaOps::kLargestHead),
       "train a model of smaller heads, or compute on the simulated device (terrace.device simulated)"});
}

AttentionCall call_of(const AttentionShape& shape, const AttentionRows<const float>& inputs) {
  AttentionCall call{};
  call.batch = shape.batch;
  call.sequence = shape.sequence;
  call.heads = shape.heads;
  call.key_value_heads = shape.key_value_heads;
  call.size = shape.head_size;
  call.past = shape.past;
  call.key_rows = shape.key_rows();
  call.query_stride = inputs.query_stride;
  call.key_value_stride = inputs.key_value_stride;
  call.factor = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
  call.queries = inputs.queries.data();
  call.keys = inputs.keys.data();
  call.values = inputs.values.data();
  return call;
}

}  // namespace compute

void CudaOps::attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                std::span<float> y, std::span<float> log_sums, StackArena&) const {
  compute::require_small_heads(shape);
  compute::require_attention_rows(shape, inputs);
  compute::require_attention_results(shape, y.size(), log_sums.size());
  if (dry_run_) return;
  compute::AttentionCall call = compute::call_of(shape, inputs);
  call.result = y.data();
  call.result_log_sums = log_sums.data();
  compute::with_tile(shape.head_size, [&]<typename T>(T) {
    const uint64_t items = shape.batch * shape.heads * divide_up(shape.sequence, T::kTile);
    compute::launch(launch_, items, compute::kThreadsOfBlock, compute::attend<T>, call);
  });
}

void CudaOps::attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                 std::span<const float> y, std::span<const float> log_sums,
                                 std::span<const float> dy, const AttentionRows<float>& gradients,
                                 StackArena& arena) const {
  compute::require_small_heads(shape);
  compute::require_attention_rows(shape, inputs);
  compute::require_attention_results(shape, y.size(), log_sums.size());
  compute::require_attention_gradients(shape, inputs, dy.size(), gradients);
  const StackArena::Frame frame(arena);
  const std::span<float> dots = arena.allocate<float>(log_sums.size());
  if (dry_run_) return;
  compute::AttentionCall call = compute::call_of(shape, inputs);
  call.y = y.data();
  call.dy = dy.data();
  call.dots = dots.data();
  call.log_sums = log_sums.data();
  call.dqueries = gradients.queries.data();
  call.dkeys = gradients.keys.data();
  call.dvalues = gradients.values.data();
  compute::launch(launch_, divide_up(dots.size(), compute::kRowsOfBlock), compute::kThreads,
                  compute::dot_rows, call, dots.data());
  compute::with_tile(shape.head_size, [&]<typename T>(T) {
    const uint64_t tiles = shape.batch * divide_up(shape.sequence, T::kTile);
    compute::launch(launch_, tiles * shape.heads, compute::kThreadsOfBlock, compute::query_gradients<T>,
                    call);
    compute::launch(launch_, tiles * shape.key_value_heads, compute::kThreadsOfBlock,
                    compute::key_value_gradients<T>, call);
  });
}

}  // namespace terrace
