// DryCommunicator: counts the bytes that a rank of a run would exchange, and moves none. Everything is over
// when it was asked for.
#pragma once

#include <utility>
#include <vector>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

class DryCommunicator : public Communicator {
 public:
  // One rank of those at `places`.
  DryCommunicator(uint32_t rank, std::vector<RankPlace> places) : Communicator(rank, std::move(places)) {}

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override;
  // One part each way may stand for those of all other ranks: for thousands of ranks they would take more
  // time and memory than all else in a dry run.
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override;
  // Gives every rank the own words.
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave(std::string) override {}
  CommCounters counters() const override { return counters_; }

 private:
  CommCounters counters_{};
};

}  // namespace terrace
