// The GPU as a ComputeDevice: CudaDevice, and the kernels on its stream. Where the kernels are not compiled
// by nvcc there is no such function; a program asks for it only where it is linked to them.
#pragma once

#include <memory>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/model/compute/cuda/cublas_lt.h>
#include <terrace/runtime/model/compute/cuda/library_products.h>

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
