// MessageCommunicator: the ranks of a run exchange bytes through a message library. One thread of this rank
// owns the library's port; it sleeps while nothing is asked for. Ranks of one host read large parts out of
// each other's memory, in one copy, where the kernel lets them.
//
// The ranks of an operation exchange a header before its bytes move, so that ranks which do different things,
// or a rank that cannot take part, fail the operation on all of them. A rank that the port cannot reach fails
// every operation that is not over, and every later one, with Error(peer) that names it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/comm/connections/process_memory.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

class CommunicationThread;
class OperationBook;

// A small part is there as soon as word that it can be read.
inline constexpr uint64_t kLeastReadBytes = uint64_t{16} << 10;

struct MessageCommunicatorOptions {
  uint32_t queue_depth = 64;  // operations of a lane that may wait
  CommHook* hook = nullptr;   // outlives the communicator; called on the thread that owns the port
  // How ranks of one host read each other's memory; empty on all ranks alike: every part is a message.
  ReadProcess read_process = read_process_memory;
  uint64_t least_read_bytes = kLeastReadBytes;  // of a part that is read; the same on all ranks
};

class MessageCommunicator final : public Communicator {
 public:
  // One rank of those at `places`. The port is made, used and ended on the thread of the communicator. Blocks
  // until it is made; throws what `make_port` throws, and Error(config) where the port is another rank's.
  MessageCommunicator(uint32_t rank, std::vector<RankPlace> places, const MakeMessagePort& make_port,
                      MessageCommunicatorOptions options = {});
  // What is not over fails. The other ranks learn of it from their ports, or are told by lose().
  ~MessageCommunicator() override;

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override;
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override;
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave(std::string why) override { lose(rank(), std::move(why)); }
  CommCounters counters() const override;
  Pulls* pulls() override;

  // The rank has left, as somebody has found out who watches the ranks: every operation fails that is not
  // over, and every later one, and names it. The first loss counts. Thread-safe.
  void lose(uint32_t rank, std::string why);

  // How the ranks of this host exchange bytes, and where they cannot read each other's memory, why: a
  // sentence for the log. Empty before an operation is over, or where this rank is alone on its host.
  // Thread-safe.
  std::string host_sentence() const;

 private:
  const std::unique_ptr<OperationBook> book_;
  const std::unique_ptr<CommunicationThread> thread_;
};

}  // namespace terrace
