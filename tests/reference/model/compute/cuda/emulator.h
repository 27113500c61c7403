// What CUDA gives a kernel, for kernels that are compiled as plain C++: the same source runs here without a
// GPU. Blocks run one after the other; the threads of a block are fibers that change places at barriers.
//
// It is strict where a GPU is not: shared memory is NaN at the start of a block and limited to what every GPU
// has, all threads must meet at the same barrier, and all lanes of a warp at the same shuffle. A block's
// threads run from barrier to barrier in ascending or descending order (set_order), so that results that
// depend on a missing barrier differ. Everything belongs to the one thread that runs kernels: the one that
// launches, or, where streams are played by threads (set_streams), that of the stream; the kernels of several
// streams take turns.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include <terrace/base/function_ref.h>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define TERRACE_SHARED(type, name, count)                            \
  type* const name = ::terrace::emulator::shared<type, (count)>([] { \
    static char place;                                               \
    return &place;                                                   \
  }())

namespace terrace::emulator {

struct Index {
  unsigned x;
};

inline constexpr unsigned kWarpThreads = 32;
// Of one block, as declared in its source.
inline constexpr size_t kSharedBytes = 48 * 1024;

enum class Order { ascending, descending };
void set_order(Order order);

// Runs `thread` for every thread of every block.
void run(unsigned blocks, unsigned threads, FunctionRef<void()> thread);

// The same on a stream: at once, or when who plays the streams comes to it.
void launch(void* stream, unsigned blocks, unsigned threads, std::function<void()> thread);
using Streams = std::function<void(void* stream, std::function<void()> kernel)>;
// Empty: kernels run at once.
void set_streams(Streams streams);

void sync_block();
void sync_warp(unsigned mask);
// The value that the lane `lane_mask` away gives.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned lane_mask);
// The block's memory of the declaration at `place`.
void* shared_bytes(const void* place, size_t bytes);

// Whether the processor has the instruction of a fused multiply-add of floats.
extern const bool kHasFma;

// a * b + c, rounded once, whoever computes it. In a build for every processor the compiler calls the library
// of C for each, which takes the place of the instruction where there is one.
inline float fmaf(float a, float b, float c) {
#if defined(__x86_64__)
  if (kHasFma) {
    asm("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }
#endif
  return std::fmaf(a, b, c);
}

template <typename T, size_t count>
T* shared(const void* place) {
  return static_cast<T*>(shared_bytes(place, count * sizeof(T)));
}

}  // namespace terrace::emulator

inline terrace::emulator::Index threadIdx{}, blockIdx{}, blockDim{}, gridDim{};

inline void __syncthreads() {
  terrace::emulator::sync_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  terrace::emulator::sync_warp(mask);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lane_mask) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = terrace::emulator::exchange(mask, bits, lane_mask);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
