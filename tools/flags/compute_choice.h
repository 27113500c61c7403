// ComputeChoice: the device on which a subcommand computes, as terrace.device asks for it, with the library
// of its matrix products. It also settles a configuration for that device.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <terrace/base/log.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

class ComputeChoice {
 public:
  // Opens a GPU only if one is asked for: where there are several ranks, the one of this rank
  // (gpu_of_rank()). Throws Error(config) for a device that cannot be used. `log` outlives it.
  ComputeChoice(const TrainConfig& config, Log& log, const Communicator* ranks = nullptr);

  // Returns null for the simulated device.
  const ComputeDevice* device() const { return compute_.get(); }
  // The number of the GPU, where it is one.
  int gpu() const { return ordinal_; }
  // Returns the configuration of a run on the device, settled with this machine's tunings and measurements.
  // Reports its findings to `log`, and throws as terrace::settle() does.
  TrainConfig settle(const TrainConfig& config, Log& log) const;

 private:
  int ordinal_ = 0;
  std::unique_ptr<CudaGpu> gpu_;
  std::unique_ptr<ComputeDevice> compute_;
};

// The type in which the device multiplies matrices: "bf16". Null: the processor.
std::string_view products_of(const TrainConfig& config, const ComputeDevice* device);
// The same in words, for a header: that the processor emulates it is said too.
std::string products_text(const TrainConfig& config, const ComputeDevice* device);

}  // namespace terrace
