// The one place that knows who compiles the kernels: nvcc, or a C++ compiler for the emulator of the tests.
// Kernels name threadIdx, blockIdx, blockDim, gridDim (x alone), __syncthreads, __syncwarp and
// __shfl_xor_sync, declare shared memory by TERRACE_SHARED, and are queued by launch().
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <terrace/base/error.h>

#define TERRACE_SHARED(type, name, count) __shared__ __align__(16) type name[count]
// Before a loop over an array that has to stay in registers.
#define TERRACE_UNROLL _Pragma("unroll")
// Before a loop whose passes would want more registers together.
#define TERRACE_ROLLED _Pragma("unroll 1")
#else
#include "emulator.h"
#define TERRACE_UNROLL
#define TERRACE_ROLLED
#endif

#include <terrace/reference/model/compute/cuda/cuda_ops.h>

namespace terrace::compute {

#if !defined(__CUDACC__)
using emulator::fmaf;
#endif

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr unsigned kThreads = 256;  // of a block, where nothing speaks for another number

template <typename... Parameters>
void launch(const CudaLaunch& where, uint64_t blocks, unsigned threads, void (*kernel)(Parameters...),
            std::type_identity_t<Parameters>... arguments) {
  if (blocks == 0) return;
  const auto grid = static_cast<unsigned>(std::min<uint64_t>(blocks, where.block_limit));
#if defined(__CUDACC__)
  kernel<<<grid, threads, 0, where.stream>>>(arguments...);
  if (const cudaError_t result = cudaGetLastError(); result != cudaSuccess) {
    throw Error(ErrorKind::device, {"cannot start a kernel on the GPU", std::to_string(grid) + " blocks",
                                    cudaGetErrorString(result),
                                    "see whether nvidia-smi lists the GPU and the kernel's log "
                                    "(dmesg) names an NVRM Xid error"});
  }
#else
  emulator::launch(where.stream, grid, threads, [=] { kernel(arguments...); });
#endif
}

}  // namespace terrace::compute
