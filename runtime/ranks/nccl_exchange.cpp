#include <terrace/runtime/ranks/nccl_exchange.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/comm/nccl/nccl_calls.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {
namespace {

std::vector<Lane> lanes_of(NcclMoves moves) {
  if (moves == NcclMoves::parameters) return {Lane::gather};
  return {Lane::gather, Lane::exchange};
}

}  // namespace

void CudaNcclGpu::open() {
  gpu_ = open_();
  stream_ = std::make_unique<const CudaLibraryStream>(*gpu_);
}

bool CudaNcclGpu::has(const std::byte* memory, uint64_t) const {
  return stream_->has(memory);
}

void CudaNcclGpu::within(FunctionRef<void()> body) const {
  const CudaContext context(*gpu_);
  body();
}

void* CudaNcclGpu::stream() const {
  return stream_->get();
}

bool CudaNcclGpu::is_over() const {
  return stream_->is_over();
}

// A GPU that cannot be opened is a reason for all ranks, as a library that cannot be loaded is.
NcclExchange::NcclExchange(const RunRanks& ranks, int gpu, NcclMoves moves, Log& log)
    : ranks_(ranks),
      gpu_([gpu, &log] { return CudaGpu::open(gpu, log); }),
      communicator_(
          *ranks.communicator(), gpu_,
          [this] {
            gpu_.open();
            return NcclCalls::load();
          },
          {.lanes = lanes_of(moves), .failed = [this](const std::string& why) -> std::exception_ptr {
             const std::optional<RankLoss> loss = ranks_.watch().loss_or_leave(why);
             return loss ? left_run(loss->rank, loss->why) : nullptr;
           }}) {
  ranks_.watch().tell_of_losses(
      [this](uint32_t rank, const std::string& why) { communicator_.lose(rank, why); });
}

NcclExchange::~NcclExchange() {
  ranks_.watch().tell_of_losses(nullptr);
}

}  // namespace terrace
