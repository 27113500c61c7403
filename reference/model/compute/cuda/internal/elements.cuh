// Elements as kernels read, compute and write them: packs of one or four, the three types with the rounding
// of base/data_type.h, and the exponential of the host's kernels.
#pragma once

#include <bit>
#include <initializer_list>

#include <terrace/base/data_type.h>
#include <terrace/base/units.h>
#include <terrace/reference/model/compute/internal/shapes.h>

#include "dialect.cuh"

namespace terrace::compute {

// Neighbours in memory that are read and written at once.
template <int kCount>
struct alignas(4 * kCount) Floats {
  float at[kCount];
};
template <typename T, int kCount>
struct alignas(2 * kCount) Halves {
  T at[kCount];
};

template <int kCount>
__device__ inline Floats<kCount> load(const float* from) {
  return *reinterpret_cast<const Floats<kCount>*>(from);
}
template <int kCount>
__device__ inline void store(float* to, const Floats<kCount>& values) {
  *reinterpret_cast<Floats<kCount>*>(to) = values;
}

template <int kCount, typename Body>
__device__ inline Floats<kCount> each(Body body) {
  Floats<kCount> values;
  for (int k = 0; k < kCount; ++k) values.at[k] = body(k);
  return values;
}

template <typename T, int kCount>
__device__ inline Floats<kCount> load_halves(const void* from, uint64_t index) {
  const auto halves = *reinterpret_cast<const Halves<T, kCount>*>(static_cast<const T*>(from) + index);
  return each<kCount>([&](int k) { return to_float(halves.at[k]); });
}

// Elements [index, index + kCount) of an array of any type.
template <int kCount>
__device__ inline Floats<kCount> load_elements(const void* from, DataType type, uint64_t index) {
  if (type == DataType::bf16) return load_halves<Bf16, kCount>(from, index);
  if (type == DataType::fp16) return load_halves<Fp16, kCount>(from, index);
  return load<kCount>(static_cast<const float*>(from) + index);
}
__device__ inline float load_element(const void* from, DataType type, uint64_t index) {
  return load_elements<1>(from, type, index).at[0];
}

template <int kCount>
__device__ inline void store_elements(void* to, DataType type, uint64_t index, const Floats<kCount>& values) {
  if (type == DataType::bf16) {
    Halves<Bf16, kCount> halves;
    for (int k = 0; k < kCount; ++k) halves.at[k] = to_bf16(values.at[k]);
    *reinterpret_cast<Halves<Bf16, kCount>*>(static_cast<Bf16*>(to) + index) = halves;
  } else if (type == DataType::fp16) {
    Halves<Fp16, kCount> halves;
    for (int k = 0; k < kCount; ++k) halves.at[k] = to_fp16(values.at[k]);
    *reinterpret_cast<Halves<Fp16, kCount>*>(static_cast<Fp16*>(to) + index) = halves;
  } else {
    store(static_cast<float*>(to) + index, values);
  }
}

// A finished contribution into a gradient: value = round(value + contribution), or the contribution alone.
template <int kCount>
__device__ inline void land_elements(const GradientTarget& target, uint64_t index,
                                     const Floats<kCount>& contribution) {
  void* const to = target.view.data;
  if (!target.view.accumulate) return store_elements(to, target.type, index, contribution);
  const Floats<kCount> value = load_elements<kCount>(to, target.type, index);
  store_elements(to, target.type, index,
                 each<kCount>([&](int k) { return value.at[k] + contribution.at[k]; }));
}

// Of vectors.inc, operation by operation: exp to about 1 ulp, kept between exp(-87) and exp(88).
__device__ inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
  const float shifted = x * 1.44269504088896341f + magic;
  const float whole = shifted - magic;
  const float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// ---- Walks over elements

// An operation over `count` elements has run<kCount>(first): elements [first, first + kCount). It goes by
// fours where `in_quads` says that all its addresses are aligned for that.
template <typename Operation>
__global__ void for_elements(Operation operation, uint64_t count, bool in_quads) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  const uint64_t quads = in_quads ? count / 4 : 0;
  for (uint64_t quad = thread; quad < quads; quad += threads) operation.template run<4>(quad * 4);
  for (uint64_t i = quads * 4 + thread; i < count; i += threads) operation.template run<1>(i);
}

struct Address {
  const void* data;
  DataType type = DataType::fp32;
};

inline bool are_aligned_for_quads(std::initializer_list<Address> addresses) {
  for (const Address& address : addresses) {
    if (reinterpret_cast<uintptr_t>(address.data) % (4 * bytes_of(address.type)) != 0) return false;
  }
  return true;
}

template <typename Operation>
void launch_elements(const CudaLaunch& where, const Operation& operation, uint64_t count, bool in_quads) {
  const uint64_t items = in_quads ? divide_up(count, 4) : count;
  launch(where, divide_up(items, kThreads), kThreads, for_elements<Operation>, operation, count, in_quads);
}

// ---- Sums over rows

// A row has 16 lanes, as on the host; a warp takes two rows.
inline constexpr unsigned kRowLanes = 16;
inline constexpr unsigned kRowsOfBlock = kThreads / kRowLanes;

// body(row, lane) with the same number of calls for both rows of a warp, so that they may shuffle: the row
// may be one that is not there.
template <typename Body>
__device__ inline void for_rows(uint64_t rows, Body body) {
  const uint64_t step = uint64_t{gridDim.x} * kRowsOfBlock;
  for (uint64_t first = uint64_t{blockIdx.x} * kRowsOfBlock; first < rows; first += step) {
    body(first + threadIdx.x / kRowLanes, threadIdx.x % kRowLanes);
  }
}

// The fixed tree over the lanes of a row; every lane gets the sum.
template <typename Number>
__device__ inline Number sum_of_lanes(Number value) {
  for (unsigned width = kRowLanes / 2; width != 0; width /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, width);
  }
  return value;
}

// The sum of term(j) over j < count, which is 0 for a row that is not there.
template <typename Term>
__device__ inline float sum_over_row(uint64_t count, unsigned lane, Term term) {
  float sum = 0.0f;
  for (uint64_t j = lane; j < count; j += kRowLanes) sum += term(j);
  return sum_of_lanes(sum);
}

}  // namespace terrace::compute
