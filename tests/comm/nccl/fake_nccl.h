// FakeNccl: the calls of NCCL on memory of this machine, for ranks that are threads. Bytes move when both
// sides have come, and a stream is over when all that was put on it has moved. Every call can be made to
// fail or to wait. As with NCCL itself, whoever waits for a rank that has aborted is told so as an error that
// happened meanwhile. It knows nothing of Terrace but the table.
//
// The calls take no context of ours, so there is one library for all; tests use it one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <terrace/comm/nccl/nccl_calls.h>
#include <terrace/comm/nccl/nccl_communicator.h>

namespace terrace::testing {

class FakeNccl {
 public:
  // A library in which no call fails, waits or was counted.
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  static std::unique_ptr<const NcclCalls> table();

  // The nth call from now (1: the next) of `call`, as "ncclSend", by that rank returns `result` and does
  // nothing. Calls without a communicator are those of any rank.
  void fail(const std::string& call, uint32_t rank, uint64_t nth, int result);
  // The rank's calls of `call` wait until its communicator is aborted.
  void block(const std::string& call, uint32_t rank);
  // Bytes stay where they are from now on.
  void hold();
  // Streams are not those of PlayedNcclGpu: `put_on` keeps one from going on until its result is called.
  using Over = std::function<void()>;
  using PutOn = std::function<Over(void* stream)>;
  void set_streams(PutOn put_on);

  uint64_t calls(const std::string& call) const;
  // Communicators that were made and neither destroyed nor aborted.
  uint32_t communicators() const;
};

// A GPU whose memory is the whole memory of this process, but for some places.
class PlayedNcclGpu final : public NcclGpu {
 public:
  PlayedNcclGpu();
  ~PlayedNcclGpu() override;
  void put_on_host(const std::byte* memory) { on_host_.insert(memory); }

  bool has(const std::byte* memory, uint64_t) const override { return !on_host_.contains(memory); }
  void within(FunctionRef<void()> body) const override { body(); }
  void* stream() const override;
  bool is_over() const override;

 private:
  struct Stream;
  std::set<const std::byte*> on_host_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace terrace::testing
