// What a GPU needs to be trained on, put together in the order in which it may go away again. It has no kernels and
// is plain C++, but is part of no library: it belongs to programs that are linked to the kernels.
#include <terrace/memory/cuda_device.h>

#include "internal/cuda_compute.h"
#include "internal/cuda_ops.h"

namespace terrace {
namespace {

// A twentieth of what is free stays: for the context's own needs, and for who else uses the GPU.
constexpr uint64_t kShareLeft = 20;

class CudaArithmetic final : public DeviceArithmetic {
 public:
  explicit CudaArithmetic(const CudaLaunch& launch) : launch_(launch) {}

  void update_tiles(const OptimizerStep& step, const TileRun& tiles) override {
    cuda_update_tiles(launch_, step, tiles);
  }
  void accumulate(const Accumulation& part) override { cuda_accumulate(launch_, part); }
  void set_zero(std::byte* elements, DataType type, uint64_t count) override {
    cuda_set_zero(launch_, elements, type, count);
  }
  void sums_of_squares(const std::byte* gradient, DataType type, uint64_t count,
                       std::span<double> sums) override {
    cuda_sums_of_squares(launch_, {gradient, type}, count, sums);
  }

 private:
  const CudaLaunch launch_;
};

class CudaComputing final : public Computing {
 public:
  CudaComputing(const CudaGpu& gpu, CudaDeviceOptions options)
      : device_(gpu, options),
        link_(gpu, device_.compute_stream()),
        ops_(products_, {.stream = device_.compute_stream()}, &link_),
        arithmetic_({.stream = device_.compute_stream()}) {}
  Device& device() override { return device_; }
  const Ops& ops() const override { return ops_; }
  DeviceArithmetic* arithmetic() override { return &arithmetic_; }

 private:
  CudaDevice device_;
  CudaHostLink link_;
  TiledProducts products_;
  CudaOps ops_;
  CudaArithmetic arithmetic_;
};

class CudaCompute final : public ComputeDevice {
 public:
  explicit CudaCompute(const CudaGpu& gpu) : gpu_(gpu) {}

  ComputeFacts facts() const override {
    const CudaFacts& facts = gpu_.facts();
    const uint64_t budget = facts.free_bytes - facts.free_bytes / kShareLeft;
    return {.granularity_bytes = facts.granularity_bytes,
            .own_memory = ComputeFacts::OwnMemory{budget, "95 % of the free memory of the " + facts.name}};
  }
  std::unique_ptr<Ops> make_dry_ops(Workers&) const override {
    return std::make_unique<CudaOps>(dry_products_, CudaLaunch{}, nullptr, true);
  }
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers&) const override {
    return std::make_unique<CudaComputing>(gpu_,
                                           CudaDeviceOptions{.budget_bytes = budget_bytes, .strict = strict});
  }

 private:
  const CudaGpu& gpu_;
  mutable TiledProducts dry_products_;  // never called
};

}  // namespace

std::unique_ptr<ComputeDevice> make_cuda_compute(const CudaGpu& gpu) {
  return std::make_unique<CudaCompute>(gpu);
}

}  // namespace terrace
