#include <terrace/comm/operations/operation_book.h>

#include <cstring>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

bool takes_ballots(Lane lane) {
  return lane == Lane::control || lane == Lane::commit;
}

}  // namespace

CommOperation OperationBook::next(CommKind kind, Lane lane, const Event* after, Event* done,
                                  const CommNote& note) {
  TERRACE_ASSERT(takes_ballots(lane) == (kind == CommKind::ballot),
                 "a lane has either ballots or operations");
  TERRACE_ASSERT(done == nullptr || !done->done(), "an operation completes an event that was begun");
  CommOperation operation;
  operation.kind = kind;
  operation.lane = lane;
  operation.rank = rank_;
  operation.index = counts_[index_of(lane)].asked++;
  operation.group = {0, 1, size_};
  operation.note = note;
  operation.after = after;
  operation.done = done;
  return operation;
}

CommOperation OperationBook::all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes,
                                        const Event* after, Event& done, const CommNote& note) {
  TERRACE_ASSERT(whole.size() == size_ * part_bytes, "there is a part for every rank");
  CommOperation operation = next(CommKind::all_gather, lane, after, &done, note);
  operation.whole = whole;
  operation.part_bytes = part_bytes;
  return operation;
}

CommOperation OperationBook::exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                             std::span<CommPart> from, const Event* after, Event& done,
                                             const CommNote& note) {
  TERRACE_ASSERT(to.size() == size_ && from.size() == size_, "there is a part for every rank");
  TERRACE_ASSERT(group.has(rank_) && group.rank(group.count - 1) < size_, "a group of this rank and others");
  CommOperation operation = next(CommKind::exchange, lane, after, &done, note);
  operation.group = group;
  operation.to = to;
  operation.from = from;
  return operation;
}

CommOperation OperationBook::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all,
                                    Event* done) {
  TERRACE_ASSERT(all.size() == size_ * mine.size(), "there is room for the words of every rank");
  CommOperation operation = next(CommKind::ballot, lane, nullptr, done, {.what = "a ballot"});
  operation.whole = all;
  operation.part_bytes = mine.size();
  if (!mine.empty()) std::memcpy(all.data() + rank_ * mine.size(), mine.data(), mine.size());
  return operation;
}

void OperationBook::count(const CommOperation& operation, uint64_t begun_ns) {
  Counts& counts = counts_[index_of(operation.lane)];
  uint64_t in_bytes = 0;
  for (uint32_t i = 0; i < operation.group.count; ++i) {
    const uint32_t other = operation.group.rank(i);
    if (other == rank_) continue;
    const CommPart sent = operation.part_for(other), received = operation.part_of(other);
    if (!sent.absent) counts.out_bytes += sent.bytes;
    if (!received.absent) in_bytes += received.bytes;
  }
  counts.in_bytes += in_bytes;
  ++counts.operations;
  if (const CopyNote& recorded = operation.note.recorded; recorded.observer != nullptr)
    recorded.observer->copied(recorded, in_bytes, begun_ns);
}

CommCounters OperationBook::counters() const {
  CommCounters counters;
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    counters[lane] = {counts_[lane].operations, counts_[lane].in_bytes, counts_[lane].out_bytes};
  return counters;
}

}  // namespace terrace
