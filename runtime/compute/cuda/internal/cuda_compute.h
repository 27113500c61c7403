// The GPU as a ComputeDevice: CudaDevice, and the kernels on its stream. Where the kernels are not compiled
// by nvcc there is no such function; a program asks for it only where it is linked to them.
#pragma once

#include <memory>

#include <terrace/memory/cuda_gpu.h>
#include <terrace/runtime/compute_device.h>

namespace terrace {

// `gpu` outlives it; it is the first that the CUDA runtime counts, where kernels run.
std::unique_ptr<ComputeDevice> make_cuda_compute(const CudaGpu& gpu);

}  // namespace terrace
