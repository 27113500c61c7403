#include "comm/rank_worlds.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include <terrace/base/error.h>
#include <terrace/comm/ports/socket/socket_port.h>

namespace terrace::testing {
namespace {

class ThreadRanks final : public RankWorld {
 public:
  explicit ThreadRanks(const RankWorldOptions& options)
      : world_({.ranks = options.ranks,
                .hosts = options.hosts,
                .queue_depth = options.queue_depth,
                .hook = options.hook}) {}

  uint32_t size() const override { return world_.size(); }
  Communicator& rank(uint32_t rank) override { return world_.rank(rank); }
  void lose(uint32_t rank, const std::string& why) override { world_.lose(rank, why); }

 private:
  ThreadWorld world_;
};

RankWorldKind messages(std::string name, const ThreadPortsOptions& ports,
                       const ReadersOfRanks& readers = {}) {
  return {std::move(name), [ports, readers](const RankWorldOptions& options) {
            return std::make_unique<MessageRanks>(options, ports, readers);
          }};
}

// Every rank comes late to some of its parts.
ReadProcess read_late(uint32_t rank) {
  return
      [random = std::minstd_rand(rank + 1)](uint32_t process, std::span<const MemoryPiece> pieces) mutable {
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        return read_process_memory(process, pieces);
      };
}

// Some ranks may not read, and get messages of those whose memory the others read.
ReadProcess read_as_every_second(uint32_t rank) {
  if (rank % 2 == 0) return read_process_memory;
  return [](uint32_t, std::span<const MemoryPiece>) { return int64_t{-EPERM}; };
}

ThreadPortsOptions with_ranks(ThreadPortsOptions ports, uint32_t ranks) {
  ports.ranks = ranks;
  return ports;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RankWorldKind& kind) {
  return out << kind.name;
}

std::vector<RankWorldKind> rank_world_kinds() {
  return {
      {"Threads", [](const RankWorldOptions& options) { return std::make_unique<ThreadRanks>(options); }},
      messages("Messages", {}),
      messages("TinyMessages", {.max_message_bytes = 48}),
      messages("LateMessages", {.latest_looks = 4, .copies_some = true, .seed = 1}),
      messages("LateTinyMessages",
               {.max_message_bytes = 100, .latest_looks = 3, .copies_some = true, .seed = 2}),
      messages("Peers", {}, read_all_of),
      messages("LatePeers", {.latest_looks = 3, .copies_some = true, .seed = 3}, read_late),
      messages("SomePeers", {.latest_looks = 5, .copies_some = true, .seed = 4}, read_as_every_second),
      {"Sockets",
       [](const RankWorldOptions& options) { return std::make_unique<SocketRanks>(options, false); }},
      {"TcpSockets",
       [](const RankWorldOptions& options) { return std::make_unique<SocketRanks>(options, true); }},
      {"NcclGathers",
       [](const RankWorldOptions& options) {
         return std::make_unique<NcclRanks>(options, std::vector{Lane::gather});
       }},
      {"NcclExchanges",
       [](const RankWorldOptions& options) {
         return std::make_unique<NcclRanks>(options, std::vector{Lane::exchange});
       }},
      {kNcclForBoth,
       [](const RankWorldOptions& options) {
         return std::make_unique<NcclRanks>(options, std::vector{Lane::gather, Lane::exchange});
       }},
  };
}

ReadProcess read_all_of(uint32_t) {
  return read_process_memory;
}

std::vector<RankPlace> places_on_one_host(uint32_t ranks) {
  return places_on({ranks, 1});
}

MessageRanks::MessageRanks(const RankWorldOptions& options, ThreadPortsOptions ports,
                           const ReadersOfRanks& readers)
    : ports_(with_ranks(ports, options.ranks)) {
  for (uint32_t r = 0; r < options.ranks; ++r)
    ranks_.push_back(std::make_unique<MessageCommunicator>(
        r, places_on({options.ranks, options.hosts}), ports_.port_of(r),
        MessageCommunicatorOptions{.queue_depth = options.queue_depth,
                                   .hook = options.hook,
                                   .read_process = readers != nullptr ? readers(r) : ReadProcess(),
                                   .least_read_bytes = 1}));
}

RendezvousPlace place_to_meet(const ScratchFolder& folder, bool over_tcp) {
  if (!over_tcp) return {.socket = folder / "meet"};
  // Below those that the system gives to whoever connects; other processes of these tests begin elsewhere.
  static std::atomic<uint32_t> tried = static_cast<uint32_t>(getpid()) * 16;
  for (int attempt = 0;; ++attempt) {
    const auto port = static_cast<uint16_t>(10'000 + tried++ % 10'000);
    const RendezvousPlace place = {.host = "127.0.0.1", .port = port};
    try {
      const ListeningSocket is_free(place);
      return place;
    } catch (const Error&) {
      if (attempt == 100) throw;
    }
  }
}

SocketRanks::SocketRanks(const RankWorldOptions& options, bool over_tcp) : ranks_(options.ranks) {
  const RendezvousPlace place = place_to_meet(folder_, over_tcp);
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < options.ranks; ++r)
    threads.emplace_back([&, r] {
      ranks_[r] = std::make_unique<MessageCommunicator>(
          r, places_on({options.ranks, options.hosts}),
          socket_port({.rank = r, .size = options.ranks, .place = place, .run = "test"}),
          MessageCommunicatorOptions{.queue_depth = options.queue_depth, .hook = options.hook});
    });
}

class NcclRanks::OtherLanes final : public CommHook {
 public:
  OtherLanes(CommHook& hook, const std::vector<Lane>& lanes) : hook_(hook), lanes_(lanes) {}
  std::exception_ptr before(const CommOperation& operation) override {
    return has(operation.lane) ? hook_.before(operation) : nullptr;
  }
  void after(const CommOperation& operation) override {
    if (has(operation.lane)) hook_.after(operation);
  }

 private:
  bool has(Lane lane) const { return std::ranges::find(lanes_, lane) == lanes_.end(); }

  CommHook& hook_;
  const std::vector<Lane> lanes_;
};

NcclRanks::NcclRanks(const RankWorldOptions& options, const std::vector<Lane>& lanes)
    : others_(options.hook != nullptr ? std::make_unique<OtherLanes>(*options.hook, lanes) : nullptr),
      world_({.ranks = options.ranks,
              .hosts = options.hosts,
              .queue_depth = options.queue_depth,
              .hook = others_.get()}),
      gpus_(options.ranks),
      ranks_(options.ranks) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < options.ranks; ++r)
    threads.emplace_back([&, r] {
      ranks_[r] = std::make_unique<NcclCommunicator>(
          world_.rank(r), gpus_[r], FakeNccl::table,
          NcclOptions{.lanes = lanes, .queue_depth = options.queue_depth, .hook = options.hook});
    });
}

void NcclRanks::lose(uint32_t rank, const std::string& why) {
  world_.lose(rank, why);
  for (const std::unique_ptr<NcclCommunicator>& one : ranks_) one->lose(rank, why);
}

void on_ranks(RankWorld& world, const std::function<void(Communicator&)>& body) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world.size(); ++r) threads.emplace_back([&, r] { body(world.rank(r)); });
}

}  // namespace terrace::testing
