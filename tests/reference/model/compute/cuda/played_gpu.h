// PlayedGpu: the CUDA back end without a GPU: CudaDevice on the fake driver, the kernels on the emulator and
// products by a fake cuBLASLt, as tasks of the fake driver's streams. One at a time.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <terrace/reference/model/compute/cuda/cuda_compute.h>

#include "emulator.h"
#include "fake_cublas_lt.h"
#include "memory/cuda/fake_cuda_driver.h"
#include "memory/cuda/fake_cuda_file.h"

namespace terrace::trainer_tests {

using testing::FakeCublasLt;
using testing::FakeCudaDriver;
using testing::FakeCudaOptions;
using testing::FakeCuFile;

struct Played {
  FakeCudaOptions driver = {};
  bool has_library = false;
  bool rounds_rows = true;
};

struct PlayedGpu {
  explicit PlayedGpu(Played played = {})
      : driver(played.driver), gpu(FakeCudaDriver::table(), 0, log, FakeCuFile::table()) {
    const auto put = [this](void* stream, std::function<void()> kernel) {
      driver.run_kernel(static_cast<CUstream>(stream), std::move(kernel));
    };
    emulator::set_streams(put);
    library.set_streams(put);
    compute = make_cuda_compute(gpu, {.library = played.has_library ? FakeCublasLt::table() : nullptr,
                                      .workspace_bytes = 64 * kKiB,
                                      .rounds_rows = played.rounds_rows});
  }
  ~PlayedGpu() { emulator::set_streams({}); }
  PlayedGpu(const PlayedGpu&) = delete;
  PlayedGpu& operator=(const PlayedGpu&) = delete;

  FakeCudaDriver driver;
  FakeCublasLt library;
  FakeCuFile cu_file;
  MemoryLog log;
  CudaGpu gpu;
  std::unique_ptr<ComputeDevice> compute;
};

}  // namespace terrace::trainer_tests
