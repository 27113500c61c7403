// OperationBook: makes the operations that one rank asks for, numbers them in their lanes, and counts those
// that were carried out, for every back end alike.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

// Operations of a lane are made by one thread at a time; everything else is thread-safe.
class OperationBook {
 public:
  OperationBook(uint32_t rank, uint32_t size) : rank_(rank), size_(size) {}

  // The operations of Communicator's functions of these names, with the same arguments. A ballot has the own
  // words in place in `all`, and `done` is null where it is carried out by the thread that asks.
  CommOperation all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after,
                           Event& done, const CommNote& note);
  CommOperation exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                std::span<CommPart> from, const Event* after, Event& done,
                                const CommNote& note);
  CommOperation ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all, Event* done);

  // The operation was carried out, from `begun_ns` on: every part that is not absent has moved. Reports what
  // this rank received.
  void count(const CommOperation& operation, uint64_t begun_ns);
  CommCounters counters() const;

 private:
  struct Counts {
    std::atomic<uint64_t> asked{0}, operations{0}, in_bytes{0}, out_bytes{0};
  };
  CommOperation next(CommKind kind, Lane lane, const Event* after, Event* done, const CommNote& note);

  const uint32_t rank_;
  const uint32_t size_;
  std::array<Counts, kLaneCount> counts_;
};

}  // namespace terrace
