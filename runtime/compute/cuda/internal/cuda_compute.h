// The GPU as a ComputeDevice: CudaDevice, and the kernels on its stream. Where the kernels are not compiled
// by nvcc there is no such function; a program asks for it only where it is linked to them.
#pragma once

#include <memory>

#include <terrace/memory/cuda_gpu.h>
#include <terrace/runtime/compute/cuda/internal/cublas_lt.h>
#include <terrace/runtime/compute/cuda/internal/library_products.h>
#include <terrace/runtime/compute_device.h>

namespace terrace {

struct CudaComputeOptions {
  // Who multiplies matrices; null: the kernels of this build.
  std::unique_ptr<const CublasLt> library = nullptr;
  uint64_t workspace_bytes = kLibraryWorkspaceBytes;
  bool rounds_rows = true;  // as CudaOpsOptions has it
};

// `gpu` outlives it; it is the first that the CUDA runtime counts, where kernels run.
std::unique_ptr<ComputeDevice> make_cuda_compute(const CudaGpu& gpu, CudaComputeOptions options);

}  // namespace terrace
