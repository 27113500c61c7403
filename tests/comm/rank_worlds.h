// RankWorld: the ranks of a run in one process, over each back end that can be tested there, for the tests of
// what all back ends promise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <terrace/comm/identity/rank_identity.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/comm/nccl/nccl_communicator.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/operations/operation.h>

#include "comm/nccl/fake_nccl.h"
#include "comm/thread_ports.h"
#include "comm/thread_world.h"
#include "support/rank_threads.h"
#include "support/scratch_folder.h"

namespace terrace::testing {

class RankWorld {
 public:
  virtual ~RankWorld() = default;
  virtual uint32_t size() const = 0;
  virtual Communicator& rank(uint32_t rank) = 0;
  // The rank takes part in nothing from now on. Thread-safe.
  virtual void lose(uint32_t rank, const std::string& why) = 0;
};

struct RankWorldOptions {
  uint32_t ranks = 1;
  uint32_t hosts = 1;  // in name: all are threads of this process
  uint32_t queue_depth = 64;
  CommHook* hook = nullptr;
};

// A back end, as it is tested.
struct RankWorldKind {
  std::string name;
  std::function<std::unique_ptr<RankWorld>(const RankWorldOptions& options)> make;
};
std::ostream& operator<<(std::ostream& out, const RankWorldKind& kind);
// The kind whose lanes of parameters and gradients are in one order, and so wait for each other.
inline constexpr const char* kNcclForBoth = "NcclGathersAndExchanges";
std::vector<RankWorldKind> rank_world_kinds();

// How a rank reads the memory of others; empty: every part is a message.
using ReadersOfRanks = std::function<ReadProcess(uint32_t rank)>;
ReadProcess read_all_of(uint32_t rank);

// Ranks over ThreadPorts. Those that read each other's memory read every part, however small.
class MessageRanks final : public RankWorld {
 public:
  // `ports.ranks` is not looked at. `readers` is not kept.
  MessageRanks(const RankWorldOptions& options, ThreadPortsOptions ports, const ReadersOfRanks& readers = {});

  uint32_t size() const override { return static_cast<uint32_t>(ranks_.size()); }
  MessageCommunicator& rank(uint32_t rank) override { return *ranks_[rank]; }
  void lose(uint32_t rank, const std::string& why) override { ports_.lose(rank, why); }

  ThreadPorts& ports() { return ports_; }
  // Ends the communicator of that rank.
  void end(uint32_t rank) { ranks_[rank].reset(); }

 private:
  ThreadPorts ports_;
  std::vector<std::unique_ptr<MessageCommunicator>> ranks_;
};

// Ranks over sockets, in a folder of their own or over TCP.
class SocketRanks final : public RankWorld {
 public:
  SocketRanks(const RankWorldOptions& options, bool over_tcp);

  uint32_t size() const override { return static_cast<uint32_t>(ranks_.size()); }
  MessageCommunicator& rank(uint32_t rank) override { return *ranks_[rank]; }
  void lose(uint32_t rank, const std::string& why) override { ranks_[rank]->leave(why); }

  // Ends the communicator of that rank.
  void end(uint32_t rank) { ranks_[rank].reset(); }

 private:
  const ScratchFolder folder_;
  std::vector<std::unique_ptr<MessageCommunicator>> ranks_;
};

// Ranks that are threads, some lanes of which move their parts by a played NCCL, as if all memory were that
// of GPUs.
class NcclRanks final : public RankWorld {
 public:
  NcclRanks(const RankWorldOptions& options, const std::vector<Lane>& lanes);

  uint32_t size() const override { return world_.size(); }
  NcclCommunicator& rank(uint32_t rank) override { return *ranks_[rank]; }
  void lose(uint32_t rank, const std::string& why) override;

  FakeNccl& library() { return library_; }
  PlayedNcclGpu& gpu(uint32_t rank) { return gpus_[rank]; }

 private:
  // The hook of all lanes but these.
  class OtherLanes;
  FakeNccl library_;
  std::unique_ptr<CommHook> others_;
  ThreadWorld world_;
  std::vector<PlayedNcclGpu> gpus_;
  std::vector<std::unique_ptr<NcclCommunicator>> ranks_;
};

// A place in the folder, or at a port of this host that is free.
RendezvousPlace place_to_meet(const ScratchFolder& folder, bool over_tcp);

// Places of ranks that are all on one host.
std::vector<RankPlace> places_on_one_host(uint32_t ranks);

// Runs `body` as every rank, each on a thread of its own.
void on_ranks(RankWorld& world, const std::function<void(Communicator&)>& body);

}  // namespace terrace::testing
