#include "flags/compute_choice.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/reference/planning/settle.h>
#include <terrace/reference/rank_setup.h>
#include <terrace/runtime/config/tuning/tuning.h>

#ifdef TERRACE_CUDA_KERNELS
#include <terrace/reference/model/compute/cuda/cuda_compute.h>
#endif

namespace terrace {
namespace {

// Makes the device that computes and logs what it is. Throws Error(device) if nothing can be computed on the
// GPU, Error(config) if it cannot be done as configured.
std::unique_ptr<ComputeDevice> compute_on(const CudaGpu& gpu, [[maybe_unused]] const TrainConfig& config,
                                          [[maybe_unused]] Log& log) {
#ifdef TERRACE_CUDA_KERNELS
  const TerraceConfig& wanted = config.terrace;
  if (wanted.compute == ComputeType::bf16_amx) {
    throw Error(ErrorKind::config, {"cannot multiply matrices with the sums of AMX", "terrace.compute",
                                    "a GPU computes", "set it to bf16, or terrace.device to simulated"});
  }
  if (wanted.compute == ComputeType::bf16 && config.precision != DataType::bf16) {
    throw Error(ErrorKind::config, {"cannot multiply matrices in bf16", "terrace.compute",
                                    fmt::format("parameters are {}, and a GPU multiplies in their type",
                                                name_of(config.precision)),
                                    "train in bf16, or leave the key out"});
  }
  if (!gpu.facts().virtual_memory) {
    throw Error(ErrorKind::device, {"cannot use", gpu.facts().name,
                                    "it or its driver has no virtual memory management (cuMemMap)", ""});
  }
  CublasLtFound found = {nullptr, "terrace.gpu_products is own"};
  if (wanted.gpu_products != GpuProducts::own) found = CublasLt::find_installed(gpu.facts().driver_version);
  if (wanted.gpu_products == GpuProducts::cublas_lt && found.library == nullptr) {
    throw Error(ErrorKind::config, {"cannot multiply matrices by cuBLASLt", "terrace.gpu_products",
                                    found.reason, "install cuBLAS 12 or 13, or set it to auto or own"});
  }
  log.info(fmt::format("computing on {}, products of matrices by {}", gpu.facts().name,
                       found.library != nullptr ? "cuBLASLt " + found.library->version_text()
                                                : "the kernels of this build: " + found.reason));
  return make_cuda_compute(
      gpu, {.library = std::move(found.library), .rounds_rows = wanted.compute != ComputeType::fp32});
#else
  throw Error(ErrorKind::device,
              {"cannot use", gpu.facts().name, "this build has no kernels for it: nvcc was not found", ""});
#endif
}

}  // namespace

ComputeChoice::ComputeChoice(const TrainConfig& config, Log& log, const Communicator* ranks) {
  const TerraceConfig& wanted = config.terrace;
  if (wanted.device == DeviceChoice::simulated) return;
  try {
    if (ranks != nullptr)
      ordinal_ = static_cast<int>(gpu_of_rank(*ranks, static_cast<uint32_t>(CudaGpu::count())));
    gpu_ = CudaGpu::open(ordinal_, log);
    compute_ = compute_on(*gpu_, config, log);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
    const ErrorParts& parts = error.parts();
    if (wanted.device == DeviceChoice::cuda) {
      throw Error(ErrorKind::config,
                  {"cannot compute on the device cuda", parts.subject, parts.reason,
                   "see `terrace report`, or give --device simulated (terrace.device), which needs no GPU"});
    }
    gpu_.reset();
    const bool wants_more = wanted.gpu_products != GpuProducts::automatic;
    log.info(fmt::format("computing on the simulated device{}: {}: {}",
                         wants_more ? ", where terrace.gpu_products has no effect" : "",
                         parts.subject.in(Door::program), parts.reason));
  }
}

TrainConfig ComputeChoice::settle(const TrainConfig& config, Log& log) const {
  return terrace::settle(config, {.tuning = tuning_folder(), .compute = device()}, log);
}

std::string_view products_of(const TrainConfig& config, const ComputeDevice* device) {
  if (device == nullptr) return name_of(processor_products(config));
  return name_of(config.terrace.compute == ComputeType::fp32 ? DataType::fp32 : config.precision);
}

std::string products_text(const TrainConfig& config, const ComputeDevice* device) {
  std::string text = fmt::format("matrices multiplied in {}", products_of(config, device));
  const ProductType products = processor_products(config);
  if (device == nullptr && !has_instruction_for(products))
    text += fmt::format(", emulated because this processor has no {}, which is slower",
                        products == ProductType::bf16 ? "AVX512_BF16" : "AMX-BF16");
  return text;
}

}  // namespace terrace
