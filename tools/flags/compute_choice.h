// ComputeChoice: the device that a subcommand computes on, as terrace.device asks for it, and with it who
// multiplies matrices there; and what a configuration comes to on it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <terrace/base/log.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>

namespace terrace {

class ComputeChoice {
 public:
  // Opens a GPU only where one is asked for. Throws Error(config) for what is asked for and cannot be used.
  // `log` outlives it.
  ComputeChoice(const TerraceConfig& wanted, Log& log);

  // Null: the simulated device.
  const ComputeDevice* device() const { return compute_.get(); }
  // The configuration that a run there has, settled by what this user's machine remembers and shows; of one
  // that follows decisions, by those in `replayed` too. Says what it has found to `log`, and throws as
  // terrace::settle() does.
  TrainConfig settle(const TrainConfig& config, const std::filesystem::path& replayed, Log& log) const;

 private:
  std::unique_ptr<CudaGpu> gpu_;
  std::unique_ptr<ComputeDevice> compute_;
};

}  // namespace terrace
