// terrace_device: the description of a device, and what makes one of it. A store has a device of its own,
// because the memory of a device is never given back while it lives.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace.h>
#include <terrace/base/log.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/device/device.h>

struct terrace_device {
  bool is_cuda = false;
  uint64_t budget_bytes = 0;
  bool strict = false;
  uint64_t h2d_bytes_per_second = 0, d2h_bytes_per_second = 0;  // of the simulated link
  int ordinal = 0;
  uint64_t granularity_bytes = 1;
};

namespace terrace {
class CudaDevice;
}

namespace terrace::c {

// A device with what it stands on.
struct MadeDevice {
  std::unique_ptr<CudaGpu> gpu;  // null where the device is simulated
  std::unique_ptr<Device> device;
  CudaDevice* cuda = nullptr;  // the device, where it is a GPU
};
MadeDevice make_device(const terrace_device& described, Log& log);

// The stream of operations; null where the device is simulated.
void* compute_stream(const MadeDevice& made);
// Throws Error(config) where the device is simulated.
void use_stream(const MadeDevice& made, void* stream);

}  // namespace terrace::c
