// The GPU as a ComputeDevice: CudaDevice, and the kernels on its stream. The function exists only where nvcc
// compiles the kernels; a program calls it only if it is linked to them.
#pragma once

#include <memory>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/compute/cuda/cublas_lt.h>
#include <terrace/reference/model/compute/cuda/library_products.h>

namespace terrace {

struct CudaComputeOptions {
  // The library of matrix products; null: the kernels of this build.
  std::unique_ptr<const CublasLt> library = nullptr;
  uint64_t workspace_bytes = kLibraryWorkspaceBytes;
  bool rounds_rows = true;  // as CudaOpsOptions has it
};

// `gpu` outlives the result. It is the first GPU that the CUDA runtime counts, since kernels run there.
std::unique_ptr<ComputeDevice> make_cuda_compute(const CudaGpu& gpu, CudaComputeOptions options);

}  // namespace terrace
