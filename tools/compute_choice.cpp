#include "compute_choice.h"

#include <fmt/format.h>

#include <terrace/base/error.h>

#ifdef TERRACE_CUDA_KERNELS
#include <terrace/runtime/compute/cuda/internal/cuda_compute.h>
#endif

namespace terrace {
namespace {

// Throws Error(device) where nothing can be computed on the GPU.
std::unique_ptr<ComputeDevice> compute_on(const CudaGpu& gpu) {
#ifdef TERRACE_CUDA_KERNELS
  if (!gpu.facts().virtual_memory) {
    throw Error(ErrorKind::device, {"cannot use", gpu.facts().name,
                                    "it or its driver has no virtual memory management (cuMemMap)", ""});
  }
  return make_cuda_compute(gpu);
#else
  throw Error(ErrorKind::device,
              {"cannot use", gpu.facts().name, "this build has no kernels for it: nvcc was not found", ""});
#endif
}

}  // namespace

ComputeChoice::ComputeChoice(DeviceChoice wanted, Log& log) {
  if (wanted == DeviceChoice::simulated) return;
  try {
    gpu_ = CudaGpu::open(0, log);
    compute_ = compute_on(*gpu_);
  } catch (const Error& error) {
    const ErrorParts& parts = error.parts();
    if (wanted == DeviceChoice::cuda) {
      throw Error(ErrorKind::config,
                  {"cannot compute on the device cuda", parts.subject, parts.reason,
                   "see `terrace report`, or give --device simulated (terrace.device), which needs no GPU"});
    }
    gpu_.reset();
    log.info(fmt::format("computing on the simulated device: {}: {}", parts.subject, parts.reason));
    return;
  }
  log.info(fmt::format("computing on {}; no run of this back end on a GPU is known yet (docs/cuda.md)",
                       gpu_->facts().name));
}

}  // namespace terrace
