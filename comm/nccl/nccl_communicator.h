// NcclCommunicator: parts that lie in memory of GPUs go from GPU to GPU by NCCL; everything else is the inner
// communicator's: ballots, the other lanes, parts in host memory, and the headers by which all ranks find
// out before any byte moves that they do the same and that none has failed.
//
// Two orders of operations on one GPU could wait for each other. So all lanes that have such parts are in one
// order: that in which operations of any of them were asked for, which has to be the same on all ranks. These
// lanes wait for each other. In one of their operations all parts lie on GPUs or none does. NCCL sends,
// receives and gathers; it never adds: what it would add would depend on the number of ranks.
//
// A rank whose NCCL fails leaves the run, so that no other waits for it for long; what is under way on its
// GPU is aborted. It was tried with a played library, and with no GPU yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

struct NcclCalls;
using LoadNccl = std::function<std::unique_ptr<const NcclCalls>()>;

// NcclGpu: the GPU of this rank. Its functions are called on threads of the communicator.
class NcclGpu {
 public:
  virtual ~NcclGpu() = default;
  // True if the bytes are memory of the GPU. A range is all there or not at all.
  virtual bool has(const std::byte* memory, uint64_t bytes) const = 0;
  // Calls `body` while the GPU's context is the thread's.
  virtual void within(FunctionRef<void()> body) const = 0;
  // The stream on which NCCL works, a cudaStream_t that nobody else uses.
  virtual void* stream() const = 0;
  // True if all that was put on the stream is over. Throws Error(device).
  virtual bool is_over() const = 0;
};

struct NcclOptions {
  std::vector<Lane> lanes = {Lane::gather};  // whose parts may lie on GPUs; none takes ballots
  uint32_t queue_depth = 64;                 // operations of these lanes together that may wait
  CommHook* hook = nullptr;                  // of these lanes; outlives the communicator
  // Called where NCCL fails on this rank, once it has left the inner communicator. Whoever waits for it on a
  // GPU is to be told. Returns what is behind that, in place of NCCL's words; null: nothing else is known.
  std::function<std::exception_ptr(const std::string& why)> failed = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  // Every rank makes one at the same time, and nothing of the control lane is under way. What `load` throws
  // is why this rank cannot begin: Error(config) on all ranks, which names it. All references outlive the
  // communicator. Nobody else asks `inner` for operations of the lanes while some of this are under way.
  NcclCommunicator(Communicator& inner, const NcclGpu& gpu, const LoadNccl& load, NcclOptions options = {});
  // What is not over fails; this rank leaves the run then.
  ~NcclCommunicator() override;

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override;
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override;
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  // Aborts what is under way on the GPU, too.
  void leave(std::string why) override;
  // Those of the lanes count their operations whichever way parts go.
  CommCounters counters() const override;
  Pulls* pulls() override { return inner_.pulls(); }

  // Another rank has left, as somebody has found out who watches the ranks: what is under way on the GPU is
  // aborted, and fails. The inner communicator is told by whoever found out. Thread-safe.
  void lose(uint32_t rank, std::string why);

 private:
  class GpuLane;
  bool is_on_gpu(Lane lane) const { return std::ranges::find(lanes_, lane) != lanes_.end(); }

  Communicator& inner_;
  const std::vector<Lane> lanes_;
  const std::unique_ptr<GpuLane> gpu_lane_;
};

}  // namespace terrace
