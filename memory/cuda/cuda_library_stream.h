// CudaLibraryStream: a stream of a GPU for a library of others that works there, as NCCL does, and what its
// user wants to know: which memory is the GPU's, and whether all that was put on the stream is over. It must
// never put anything there itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <terrace/memory/cuda/cuda_gpu.h>

struct CUstream_st;

namespace terrace {

// Thread-safe. Where a GPU's calls fail, functions throw Error(device).
class CudaLibraryStream {
 public:
  // `gpu` outlives the stream. Throws Error(device).
  explicit CudaLibraryStream(const CudaGpu& gpu);
  // Nothing is under way on it any more.
  ~CudaLibraryStream();
  CudaLibraryStream(const CudaLibraryStream&) = delete;
  CudaLibraryStream& operator=(const CudaLibraryStream&) = delete;

  CUstream_st* get() const;
  // True if the byte is memory of this GPU.
  bool has(const std::byte* memory) const;
  // True if everything that was put on the stream is over.
  bool is_over() const;

 private:
  struct State;
  [[maybe_unused]] const CudaGpu& gpu_;  // of builds with CUDA
  std::unique_ptr<State> state_;
};

}  // namespace terrace
