#include <terrace/comm/operations/dry_communicator.h>

#include <cstring>

#include <terrace/base/assert.h>

namespace terrace {

void DryCommunicator::all_gather(Lane lane, std::span<std::byte>, uint64_t part_bytes, const Event* after,
                                 Event& done, const CommNote&) {
  TERRACE_ASSERT(after == nullptr || after->done(), "nothing takes time in a dry run");
  LaneCounters& counters = counters_[index_of(lane)];
  const uint64_t bytes = (size() - 1) * part_bytes;
  ++counters.operations;
  counters.in_bytes += bytes;
  counters.out_bytes += bytes;
  done.complete_one();
}

void DryCommunicator::exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                      std::span<CommPart> from, const Event* after, Event& done,
                                      const CommNote&) {
  TERRACE_ASSERT(after == nullptr || after->done(), "nothing takes time in a dry run");
  LaneCounters& counters = counters_[index_of(lane)];
  ++counters.operations;
  for (uint32_t r = 0; r < from.size(); ++r) {
    if (from.size() == size() && (r == rank() || !group.has(r))) continue;
    counters.out_bytes += to[r].absent ? 0 : to[r].bytes;
    counters.in_bytes += from[r].bytes;
    from[r].absent = false;
  }
  done.complete_one();
}

void DryCommunicator::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  LaneCounters& counters = counters_[index_of(lane)];
  ++counters.operations;
  counters.in_bytes += (size() - 1) * mine.size();
  counters.out_bytes += (size() - 1) * mine.size();
  for (uint32_t r = 0; r < size() && !mine.empty(); ++r)
    std::memcpy(all.data() + r * mine.size(), mine.data(), mine.size());
}

}  // namespace terrace
