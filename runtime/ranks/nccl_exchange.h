// NcclExchange: while it lives, the parameters that the ranks of a run gather go from GPU to GPU by NCCL
// (comm/nccl/nccl_communicator.h), and gradients where they lie on GPUs; everything else as before. A rank
// that is lost ends what waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <terrace/base/log.h>
#include <terrace/comm/nccl/nccl_communicator.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/cuda/cuda_library_stream.h>
#include <terrace/runtime/ranks/run_ranks.h>

namespace terrace {

// CudaNcclGpu: the GPU of a rank by its driver. What it is asked before open() is a mistake.
class CudaNcclGpu final : public NcclGpu {
 public:
  using Open = std::function<std::unique_ptr<const CudaGpu>()>;
  explicit CudaNcclGpu(Open open) : open_(std::move(open)) {}
  // Throws Error(device), as open() of the constructor does.
  void open();

  bool has(const std::byte* memory, uint64_t bytes) const override;
  void within(FunctionRef<void()> body) const override;
  void* stream() const override;
  bool is_over() const override;

 private:
  const Open open_;
  std::unique_ptr<const CudaGpu> gpu_;
  std::unique_ptr<const CudaLibraryStream> stream_;
};

// What goes by NCCL.
enum class NcclMoves : uint8_t { parameters, parameters_and_gradients };

class NcclExchange {
 public:
  // Every rank makes one at the same time, for the GPU that it computes on, of which it has a part of its
  // own. There are several ranks, and they have met. `ranks` and `log` outlive it. Throws Error(config) on
  // all ranks where one cannot use NCCL. `moves` is the same on all; gradients that lie on the host go past
  // NCCL either way, but behind and before what goes by it where it is told that gradients do.
  NcclExchange(const RunRanks& ranks, int gpu, NcclMoves moves, Log& log);
  // What is not over fails; this rank leaves the run then.
  ~NcclExchange();
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;

  Communicator& communicator() { return communicator_; }

 private:
  const RunRanks& ranks_;
  CudaNcclGpu gpu_;
  NcclCommunicator communicator_;
};

}  // namespace terrace
