// Causal attention that never stores a row of probabilities (FlashAttention, arXiv:2205.14135), in fp32. A
// block takes a tile of the queries of one head, or, for the gradients of keys and values, a tile of the keys
// of one shared head; the other side goes by in tiles of the same size through shared memory. Eight threads
// share a row of the tile.
//
// Every chain over head elements, keys or queries is one of fused multiply-adds in ascending order, which is
// what the host does: from the same log_sums the backward pass gives the host's bits.
#include <cmath>
#include <limits>

#include <terrace/base/error.h>

#include "internal/elements.cuh"

namespace terrace {
namespace compute {

constexpr unsigned kRowThreads = 8;

struct AttentionCall {
  uint64_t batch, sequence, heads, key_value_heads, size, query_stride, key_value_stride;
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
          .key_value = token * call.key_value_stride + head / group * call.size,
          .y = (token * call.heads + head) * call.size,
          .number = (sample * call.heads + head) * call.sequence};
}

// The shape of a kernel's tiles: kTile rows of heads of at most kSize elements.
template <unsigned kSizeOfHead, unsigned kRows>
struct Tile {
  static constexpr unsigned kSize = kSizeOfHead;
  static constexpr unsigned kTile = kRows;
  static constexpr unsigned kThreadsOfBlock = kTile * kRowThreads;
  static constexpr unsigned kStride = kSize + 1;  // rows begin in different banks
  static constexpr unsigned kFloats = kTile * kStride;
  static constexpr unsigned kScoreStride = kTile + 1;
  static constexpr unsigned kScores = kTile * kScoreStride;
  static constexpr unsigned kColumns = kSize / kRowThreads;  // of a thread
  static constexpr unsigned kOthers = kTile / kRowThreads;   // rows of the other side of a thread
  static_assert(kThreadsOfBlock % kWarp == 0 && kSize % kRowThreads == 0 && kTile % kRowThreads == 0);
};

// Rows [first, first + kTile) of a matrix of `rows` rows; what is missing, and the columns behind `size`, are
// zeros.
template <typename T>
__device__ inline void load_tile(const float* from, uint64_t stride, uint64_t first, uint64_t rows,
                                 uint64_t size, float* tile) {
  const unsigned row = threadIdx.x / kRowThreads;
  const bool is_there = first + row < rows;
  const float* const source = from + (first + row) * stride;
  for (unsigned column = threadIdx.x % kRowThreads; column < T::kSize; column += kRowThreads) {
    tile[row * T::kStride + column] = is_there && column < size ? source[column] : 0.0f;
  }
}

__device__ inline float chain(const float* a, const float* b, uint64_t count) {
  float sum = 0.0f;
  for (uint64_t i = 0; i < count; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

// sums[c] += the chain over the kTile rows of `tile`, weighted; the thread's columns.
template <typename T>
__device__ inline void add_weighted_rows(const float* weights, const float* tile,
                                         float (&sums)[T::kColumns]) {
  const float* const columns = tile + threadIdx.x % kRowThreads;
  for (unsigned other = 0; other < T::kTile; ++other) {
    const float weight = weights[other];
    for (unsigned c = 0; c < T::kColumns; ++c) {
      sums[c] = fmaf(weight, columns[other * T::kStride + c * kRowThreads], sums[c]);
    }
  }
}

// body(column of the head, index) for the thread's columns.
template <typename T, typename Body>
__device__ inline void for_columns(uint64_t size, Body body) {
  for (unsigned c = 0; c < T::kColumns; ++c) {
    const unsigned column = threadIdx.x % kRowThreads + c * kRowThreads;
    if (column < size) body(column, c);
  }
}

// Over the eight threads of a row; all of them get the result.
__device__ inline float largest_of_row(float value) {
  for (unsigned width = kRowThreads / 2; width != 0; width /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, width);
    value = other > value ? other : value;
  }
  return value;
}
__device__ inline float sum_of_row(float value) {
  for (unsigned width = kRowThreads / 2; width != 0; width /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, width);
  }
  return value;
}

// ---- Forward

template <typename T>
struct RunningRow {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float columns[T::kColumns] = {};
};

// The row's probabilities over a tile of keys, relative to the largest score so far, into `weights`. A row
// sees a key of every tile it is shown, so that its largest score is finite.
template <typename T>
__device__ inline void weigh_keys(const AttentionCall& call, const float* query_row, const float* keys,
                                  uint64_t query, uint64_t first_key, RunningRow<T>& row, float* weights) {
  float scores[T::kOthers];
  float largest = row.largest;
  for (unsigned i = 0; i < T::kOthers; ++i) {
    const unsigned other = threadIdx.x % kRowThreads + i * kRowThreads;
    scores[i] = chain(query_row, keys + other * T::kStride, call.size) * call.factor;
    if (first_key + other <= query && scores[i] > largest) largest = scores[i];
  }
  largest = largest_of_row(largest);
  float sum = 0.0f;
  for (unsigned i = 0; i < T::kOthers; ++i) {
    const unsigned other = threadIdx.x % kRowThreads + i * kRowThreads;
    const float weight = first_key + other <= query ? exp_of(scores[i] - largest) : 0.0f;
    weights[other] = weight;
    sum += weight;
  }
  const float shrink = exp_of(row.largest - largest);
  row.sum = row.sum * shrink + sum_of_row(sum);
  row.largest = largest;
  for (float& column : row.columns) column *= shrink;
}

template <typename T>
__global__ void __launch_bounds__(T::kThreadsOfBlock) attend(AttentionCall call) {
  TERRACE_SHARED(float, queries, T::kFloats);
  TERRACE_SHARED(float, keys, T::kFloats);
  TERRACE_SHARED(float, values, T::kFloats);
  TERRACE_SHARED(float, weights, T::kScores);
  const unsigned in_tile = threadIdx.x / kRowThreads;
  const uint64_t tiles = divide_up(call.sequence, T::kTile);
  for (uint64_t item = blockIdx.x; item < call.batch * call.heads * tiles; item += gridDim.x) {
    const uint64_t head = item / tiles, first = (tiles - 1 - item % tiles) * T::kTile;  // the longest first
    const HeadPlace at = place_of(call, head / call.heads, head % call.heads);
    const uint64_t query = first + in_tile;
    RunningRow<T> row;
    __syncthreads();
    load_tile<T>(call.queries + at.query, call.query_stride, first, call.sequence, call.size, queries);
    for (uint64_t first_key = 0; first_key <= first; first_key += T::kTile) {
      __syncthreads();
      load_tile<T>(call.keys + at.key_value, call.key_value_stride, first_key, call.sequence, call.size,
                   keys);
      load_tile<T>(call.values + at.key_value, call.key_value_stride, first_key, call.sequence, call.size,
                   values);
      __syncthreads();
      float* const weights_of_row = weights + in_tile * T::kScoreStride;
      weigh_keys<T>(call, queries + in_tile * T::kStride, keys, query, first_key, row, weights_of_row);
      __syncwarp();
      add_weighted_rows<T>(weights_of_row, values, row.columns);
    }
    if (query >= call.sequence) continue;
    const float inverse_sum = 1.0f / row.sum;
    for_columns<T>(call.size, [&](unsigned column, unsigned c) {
      call.result[at.y + query * call.heads * call.size + column] = row.columns[c] * inverse_sum;
    });
    if (threadIdx.x % kRowThreads == 0) call.result_log_sums[at.number + query] = row.largest + logf(row.sum);
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

struct Probability {
  float p, ds;
};

// Of one query and one key, whose rows and those of dy and the values lie in shared memory.
__device__ inline Probability probability_of(const AttentionCall& call, const float* query_row,
                                             const float* key_row, const float* dy_row,
                                             const float* value_row, uint64_t number) {
  const float score = chain(query_row, key_row, call.size), dp = chain(dy_row, value_row, call.size);
  const float p = exp_of(score * call.factor - call.log_sums[number]);
  return {p, p * (dp - call.dots[number]) * call.factor};
}

template <typename T>
__global__ void __launch_bounds__(T::kThreadsOfBlock) query_gradients(AttentionCall call) {
  TERRACE_SHARED(float, queries, T::kFloats);
  TERRACE_SHARED(float, dys, T::kFloats);
  TERRACE_SHARED(float, keys, T::kFloats);
  TERRACE_SHARED(float, values, T::kFloats);
  TERRACE_SHARED(float, weights, T::kScores);
  const unsigned in_tile = threadIdx.x / kRowThreads;
  const uint64_t tiles = divide_up(call.sequence, T::kTile), y_stride = call.heads * call.size;
  for (uint64_t item = blockIdx.x; item < call.batch * call.heads * tiles; item += gridDim.x) {
    const uint64_t head = item / tiles, first = (tiles - 1 - item % tiles) * T::kTile;
    const HeadPlace at = place_of(call, head / call.heads, head % call.heads);
    const uint64_t query = first + in_tile;
    float sums[T::kColumns] = {};
    __syncthreads();
    load_tile<T>(call.queries + at.query, call.query_stride, first, call.sequence, call.size, queries);
    load_tile<T>(call.dy + at.y, y_stride, first, call.sequence, call.size, dys);
    for (uint64_t first_key = 0; first_key <= first; first_key += T::kTile) {
      __syncthreads();
      load_tile<T>(call.keys + at.key_value, call.key_value_stride, first_key, call.sequence, call.size,
                   keys);
      load_tile<T>(call.values + at.key_value, call.key_value_stride, first_key, call.sequence, call.size,
                   values);
      __syncthreads();
      float* const weights_of_row = weights + in_tile * T::kScoreStride;
      for (unsigned other = threadIdx.x % kRowThreads; other < T::kTile; other += kRowThreads) {
        float ds = 0.0f;
        if (query < call.sequence && first_key + other <= query) {
          ds = probability_of(call, queries + in_tile * T::kStride, keys + other * T::kStride,
                              dys + in_tile * T::kStride, values + other * T::kStride, at.number + query)
                   .ds;
        }
        weights_of_row[other] = ds;
      }
      __syncwarp();
      add_weighted_rows<T>(weights_of_row, keys, sums);
    }
    if (query >= call.sequence) continue;
    for_columns<T>(call.size, [&](unsigned column, unsigned c) {
      call.dqueries[at.query + query * call.query_stride + column] = sums[c];
    });
  }
}

// The query heads of a group one after the other, each a chain of its own, added in their order.
template <typename T>
__global__ void __launch_bounds__(T::kThreadsOfBlock) key_value_gradients(AttentionCall call) {
  TERRACE_SHARED(float, keys, T::kFloats);
  TERRACE_SHARED(float, values, T::kFloats);
  TERRACE_SHARED(float, queries, T::kFloats);
  TERRACE_SHARED(float, dys, T::kFloats);
  TERRACE_SHARED(float, probabilities, T::kScores);
  TERRACE_SHARED(float, weights, T::kScores);
  const unsigned in_tile = threadIdx.x / kRowThreads;
  const unsigned scores_of_row = in_tile * T::kScoreStride;
  const uint64_t tiles = divide_up(call.sequence, T::kTile), y_stride = call.heads * call.size;
  const uint64_t group = call.heads / call.key_value_heads;
  for (uint64_t item = blockIdx.x; item < call.batch * call.key_value_heads * tiles; item += gridDim.x) {
    const uint64_t shared_head = item / tiles, first = item % tiles * T::kTile;  // the longest first
    const uint64_t sample = shared_head / call.key_value_heads;
    const uint64_t first_head = shared_head % call.key_value_heads * group;
    const uint64_t key = first + in_tile, key_value = place_of(call, sample, first_head).key_value;
    float key_sums[T::kColumns] = {}, value_sums[T::kColumns] = {};
    __syncthreads();
    load_tile<T>(call.keys + key_value, call.key_value_stride, first, call.sequence, call.size, keys);
    load_tile<T>(call.values + key_value, call.key_value_stride, first, call.sequence, call.size, values);
    for (uint64_t head = first_head; head < first_head + group; ++head) {
      const HeadPlace at = place_of(call, sample, head);
      float dk[T::kColumns] = {}, dv[T::kColumns] = {};
      for (uint64_t first_query = first; first_query < call.sequence; first_query += T::kTile) {
        __syncthreads();
        load_tile<T>(call.queries + at.query, call.query_stride, first_query, call.sequence, call.size,
                     queries);
        load_tile<T>(call.dy + at.y, y_stride, first_query, call.sequence, call.size, dys);
        __syncthreads();
        for (unsigned other = threadIdx.x % kRowThreads; other < T::kTile; other += kRowThreads) {
          Probability of_pair{0.0f, 0.0f};
          if (first_query + other < call.sequence && key <= first_query + other) {
            of_pair = probability_of(call, queries + other * T::kStride, keys + in_tile * T::kStride,
                                     dys + other * T::kStride, values + in_tile * T::kStride,
                                     at.number + first_query + other);
          }
          probabilities[scores_of_row + other] = of_pair.p;
          weights[scores_of_row + other] = of_pair.ds;
        }
        __syncwarp();
        add_weighted_rows<T>(weights + scores_of_row, queries, dk);
        add_weighted_rows<T>(probabilities + scores_of_row, dys, dv);
      }
      for (unsigned c = 0; c < T::kColumns; ++c) {
        key_sums[c] = head == first_head ? dk[c] : key_sums[c] + dk[c];
        value_sums[c] = head == first_head ? dv[c] : value_sums[c] + dv[c];
      }
    }
    if (key >= call.sequence) continue;
    for_columns<T>(call.size, [&](unsigned column, unsigned c) {
      const uint64_t to = key_value + key * call.key_value_stride + column;
      call.dkeys[to] = key_sums[c];
      call.dvalues[to] = value_sums[c];
    });
  }
}

// ---- Which tiles: four of them and the scores have to fit into a block's shared memory.

template <typename Body>
void with_tile(uint64_t size, Body body) {
  if (size <= 64) {
    body(Tile<64, 32>{});
  } else if (size <= 128) {
    body(Tile<128, 16>{});
  } else {
    body(Tile<256, 8>{});
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
    compute::launch(launch_, items, T::kThreadsOfBlock, compute::attend<T>, call);
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
    compute::launch(launch_, tiles * shape.heads, T::kThreadsOfBlock, compute::query_gradients<T>, call);
    compute::launch(launch_, tiles * shape.key_value_heads, T::kThreadsOfBlock,
                    compute::key_value_gradients<T>, call);
  });
}

}  // namespace terrace
