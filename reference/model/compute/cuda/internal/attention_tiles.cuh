// What attention's kernels do with tiles: products of rows with rows, and sums of weighted rows. The threads
// of a block are a square of 16 by 16: a thread has a few rows of the tile, and of these a few pairs with
// rows of the other side, or a few columns of the head. Both operands of a product go by in slices through
// shared memory, and its sums stay in registers.
//
// Every chain over head elements, keys or queries is one of fused multiply-adds in ascending order.
#pragma once

#include "elements.cuh"

namespace terrace::compute {

constexpr unsigned kRowThreads = 16;  // threads of a block, either way
constexpr unsigned kThreadsOfBlock = kRowThreads * kRowThreads;
constexpr unsigned kDepthOfSlice = 32;                // of a slice: elements of the head
constexpr unsigned kSliceStride = kDepthOfSlice + 4;  // rows begin in different banks
constexpr unsigned kRowsOfSlice = 16;                 // of the other side, with all elements of the head

// The shape of a kernel's tiles: of heads of at most kSizeOfHead elements, kOfThread rows of each side a
// thread.
template <unsigned kSizeOfHead, unsigned kOfThread>
struct Tile {
  static constexpr unsigned kRows = kOfThread;
  static constexpr unsigned kTile = kRowThreads * kOfThread;
  static constexpr unsigned kSize = kSizeOfHead;
  static constexpr unsigned kColumns = kSize / kRowThreads;  // of a thread, four by four
  static constexpr unsigned kSlices = 2 * kTile * kSliceStride;
  static constexpr unsigned kWeightStride = kTile + 4;
  static constexpr unsigned kWeights = kTile * kWeightStride;
  static constexpr unsigned kSliceOfRows = kRowsOfSlice * kSize;
  static_assert(kSize % (4 * kRowThreads) == 0 && kTile % kRowsOfSlice == 0);
  static_assert((kSlices + kWeights + kSliceOfRows) * sizeof(float) <= 48 * 1024);

  using Pairs =
      float[kRows][kRows];  // with the rows threadIdx.x % kRowThreads + kRowThreads * j of the other side
  using Columns = float[kRows][kColumns];
};

struct alignas(16) Four {
  float of[4];
};

__device__ inline Four four_at(const float* place) {
  return *reinterpret_cast<const Four*>(place);
}

// Rows of one head of a matrix, `first` and those after it; behind `end` there are zeros.
struct HeadRows {
  const float* from;
  uint64_t stride, first, end;
};

__device__ inline unsigned row_of_thread(unsigned rows_of_thread, unsigned i) {
  return threadIdx.x / kRowThreads * rows_of_thread + i;
}
__device__ inline unsigned other_of_thread(unsigned j) {
  return threadIdx.x % kRowThreads + kRowThreads * j;
}
__device__ inline unsigned column_of_thread(unsigned c) {
  return (c / 4 * kRowThreads + threadIdx.x % kRowThreads) * 4 + c % 4;
}

// kDepthOfSlice elements of a tile's rows from `depth` on.
template <typename T>
__device__ inline void load_slice(const HeadRows& rows, uint64_t depth, uint64_t size, float* slice) {
  TERRACE_UNROLL
  for (unsigned i = 0; i < T::kTile * kDepthOfSlice / kThreadsOfBlock; ++i) {
    const unsigned place = threadIdx.x + i * kThreadsOfBlock, column = place % kDepthOfSlice;
    const uint64_t row = rows.first + place / kDepthOfSlice;
    const bool is_there = row < rows.end && depth + column < size;
    slice[place / kDepthOfSlice * kSliceStride + column] =
        is_there ? rows.from[row * rows.stride + depth + column] : 0.0f;
  }
}

// The product of every row of `a` with every row of `b`, the thread's pairs.
template <typename T>
__device__ inline void multiply_rows(const HeadRows& a, const HeadRows& b, uint64_t size, float* slices,
                                     typename T::Pairs& products) {
  float* const slice_of_b = slices + T::kTile * kSliceStride;
  for (auto& row : products) {
    for (float& product : row) product = 0.0f;
  }
  for (uint64_t depth = 0; depth < size; depth += kDepthOfSlice) {
    __syncthreads();
    load_slice<T>(a, depth, size, slices);
    load_slice<T>(b, depth, size, slice_of_b);
    __syncthreads();
    TERRACE_ROLLED
    for (unsigned k = 0; k < kDepthOfSlice; k += 4) {
      Four others[T::kRows];
      TERRACE_UNROLL
      for (unsigned j = 0; j < T::kRows; ++j)
        others[j] = four_at(slice_of_b + other_of_thread(j) * kSliceStride + k);
      TERRACE_UNROLL
      for (unsigned i = 0; i < T::kRows; ++i) {
        const Four row = four_at(slices + row_of_thread(T::kRows, i) * kSliceStride + k);
        TERRACE_UNROLL
        for (unsigned e = 0; e < 4; ++e) {
          TERRACE_UNROLL
          for (unsigned j = 0; j < T::kRows; ++j)
            products[i][j] = fmaf(row.of[e], others[j].of[e], products[i][j]);
        }
      }
    }
  }
}

template <typename T>
__device__ inline void store_weights(const typename T::Pairs& pairs, float* weights) {
  TERRACE_UNROLL
  for (unsigned i = 0; i < T::kRows; ++i) {
    TERRACE_UNROLL
    for (unsigned j = 0; j < T::kRows; ++j)
      weights[row_of_thread(T::kRows, i) * T::kWeightStride + other_of_thread(j)] = pairs[i][j];
  }
}

// sums += the tile's `rows`, weighted; the thread's columns. The weights may have been stored just before.
template <typename T>
__device__ inline void add_weighted_rows(const float* weights, const HeadRows& rows, uint64_t size,
                                         float* slice, typename T::Columns& sums) {
  for (unsigned first = 0; first < T::kTile && rows.first + first < rows.end; first += kRowsOfSlice) {
    __syncthreads();
    TERRACE_UNROLL
    for (unsigned i = 0; i < T::kSliceOfRows / kThreadsOfBlock; ++i) {
      const unsigned place = threadIdx.x + i * kThreadsOfBlock, column = place % T::kSize;
      const uint64_t row = rows.first + first + place / T::kSize;
      slice[place] = row < rows.end && column < size ? rows.from[row * rows.stride + column] : 0.0f;
    }
    __syncthreads();
    TERRACE_ROLLED
    for (unsigned other = 0; other < kRowsOfSlice; other += 4) {
      Four of_rows[T::kRows];
      TERRACE_UNROLL
      for (unsigned i = 0; i < T::kRows; ++i)
        of_rows[i] = four_at(weights + row_of_thread(T::kRows, i) * T::kWeightStride + first + other);
      TERRACE_UNROLL
      for (unsigned e = 0; e < 4; ++e) {
        TERRACE_UNROLL
        for (unsigned c = 0; c < T::kColumns; c += 4) {
          const Four columns = four_at(slice + (other + e) * T::kSize + column_of_thread(c));
          TERRACE_UNROLL
          for (unsigned i = 0; i < T::kRows; ++i) {
            TERRACE_UNROLL
            for (unsigned d = 0; d < 4; ++d)
              sums[i][c + d] = fmaf(of_rows[i].of[e], columns.of[d], sums[i][c + d]);
          }
        }
      }
    }
  }
}

// body(column of the head, index) for the thread's columns.
template <typename T, typename Body>
__device__ inline void for_columns(uint64_t size, Body body) {
  TERRACE_UNROLL
  for (unsigned c = 0; c < T::kColumns; ++c) {
    if (column_of_thread(c) < size) body(column_of_thread(c), c);
  }
}

// Over the threads of a row; all of them get the result.
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

template <typename T>
__device__ inline void clear(typename T::Columns& sums) {
  TERRACE_UNROLL
  for (auto& row : sums) {
    TERRACE_UNROLL
    for (float& sum : row) sum = 0.0f;
  }
}

}  // namespace terrace::compute
