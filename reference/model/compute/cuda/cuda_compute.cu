// What a GPU needs to be trained on, put together in the order in which it may go away again. It has no
// kernels and is plain C++, but is part of no library: it belongs to programs that are linked to the kernels.
#include <optional>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/cuda/cuda_file_reads.h>

#include "cuda_compute.h"
#include "cuda_ops.h"

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

// Products that take the memory of those that they stand for and are never made.
class DryProducts final : public CudaProducts {
 public:
  explicit DryProducts(const CudaComputeOptions& options) : options_(options) {}
  ProductMemory take_memory(const ProductShape& shape, const ProductTypes& types,
                            StackArena& arena) const override {
    if (options_.library == nullptr) return TiledProducts().take_memory(shape, types, arena);
    return take_library_memory(shape, types, options_.workspace_bytes, arena);
  }
  void multiply(const CudaLaunch&, const ProductShape&, const Operand&, const Operand&, const ProductTarget&,
                const ProductMemory&) override {
    TERRACE_ASSERT(false, "a product in a dry run");
  }
  void multiply_into(const CudaLaunch&, const ProductShape&, const Operand&, const Operand&,
                     const GradientTarget&, const ProductMemory&) override {
    TERRACE_ASSERT(false, "a product in a dry run");
  }

 private:
  const CudaComputeOptions& options_;
};

class CudaComputing final : public Computing {
 public:
  CudaComputing(const CudaGpu& gpu, CudaDeviceOptions device, const CudaComputeOptions& options)
      : device_(gpu, device),
        link_(gpu, device_.compute_stream()),
        ops_(begin_products(options, gpu.log()), {.stream = device_.compute_stream()},
             {.link = &link_, .rounds_rows = options.rounds_rows}),
        arithmetic_({.stream = device_.compute_stream()}) {}
  Device& device() override { return device_; }
  const Ops& ops() const override { return ops_; }
  void wait() override { device_.wait_for_operations("operations whose time is taken"); }
  DeviceArithmetic* arithmetic() override { return &arithmetic_; }

 private:
  CudaProducts& begin_products(const CudaComputeOptions& options, Log& log) {
    if (options.library == nullptr) return plain_;
    return library_.emplace(*options.library, plain_, options.workspace_bytes, log);
  }

  CudaDevice device_;
  CudaHostLink link_;
  TiledProducts plain_;
  std::optional<LibraryProducts> library_;
  CudaOps ops_;
  CudaArithmetic arithmetic_;
};

class CudaCompute final : public ComputeDevice {
 public:
  CudaCompute(const CudaGpu& gpu, CudaComputeOptions options) : gpu_(gpu), options_(std::move(options)) {}

  ComputeFacts facts() const override {
    const CudaFacts& facts = gpu_.facts();
    const uint64_t budget = facts.free_bytes - facts.free_bytes / kShareLeft;
    return {.name = facts.name + ", products by " +
                    (options_.library != nullptr ? "cuBLASLt " + options_.library->version_text()
                                                 : std::string("the kernels of this build")),
            .granularity_bytes = facts.granularity_bytes,
            .own_memory = ComputeFacts::OwnMemory{budget, "95 % of the free memory of the " + facts.name}};
  }
  std::unique_ptr<Ops> make_dry_ops(Workers&) const override {
    return std::make_unique<CudaOps>(dry_products_, CudaLaunch{},
                                     CudaOpsOptions{.dry_run = true, .rounds_rows = options_.rounds_rows});
  }
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers&) const override {
    return std::make_unique<CudaComputing>(
        gpu_, CudaDeviceOptions{.budget_bytes = budget_bytes, .strict = strict}, options_);
  }
  std::string why_no_file_reads(std::span<const std::filesystem::path> folders) const override {
    return terrace::why_no_file_reads(gpu_, folders);
  }

 private:
  const CudaGpu& gpu_;
  const CudaComputeOptions options_;
  mutable DryProducts dry_products_{options_};
};

}  // namespace

std::unique_ptr<ComputeDevice> make_cuda_compute(const CudaGpu& gpu, CudaComputeOptions options) {
  return std::make_unique<CudaCompute>(gpu, std::move(options));
}

}  // namespace terrace
