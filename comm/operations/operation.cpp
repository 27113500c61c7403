#include <terrace/comm/operations/operation.h>

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::all_gather:
      return "all-gather";
    case CommKind::exchange:
      return "exchange";
    case CommKind::ballot:
      return "ballot";
  }
  return "operation";
}

CommPart gathered(const CommOperation& operation, uint32_t rank) {
  const std::span<std::byte> whole = operation.whole;
  return {whole.empty() ? nullptr : whole.data() + rank * operation.part_bytes, operation.part_bytes};
}

std::exception_ptr peer_error(ErrorParts parts) {
  return std::make_exception_ptr(Error(ErrorKind::peer, std::move(parts)));
}

}  // namespace

Communicator::Communicator(uint32_t rank, std::vector<RankPlace> places)
    : rank_(rank), places_(std::move(places)) {
  TERRACE_ASSERT(rank < places_.size(), "the rank is one of the run");
}

void Communicator::set_places(std::vector<RankPlace> places) {
  TERRACE_ASSERT(places.size() == places_.size(), "a run keeps its ranks");
  places_ = std::move(places);
}

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, kLaneCount> kNames = {
      "gather", "exchange", "gather_between_hosts", "exchange_between_hosts", "control", "commit"};
  return kNames[index_of(lane)];
}

std::exception_ptr CommOperation::failure_before(CommHook* hook) const {
  const std::exception_ptr failure = after != nullptr ? after->failure() : nullptr;
  return failure == nullptr && hook != nullptr ? hook->before(*this) : failure;
}

uint64_t CommOperation::now_ns() const {
  return note.recorded.observer != nullptr ? note.recorded.observer->now_ns() : 0;
}

CommPart CommOperation::part_for(uint32_t other) const {
  return kind == CommKind::exchange ? to[other] : gathered(*this, rank);
}

CommPart CommOperation::part_of(uint32_t other) const {
  return kind == CommKind::exchange ? from[other] : gathered(*this, other);
}

std::string text_of(const CommOperation& operation) {
  const CommNote& note = operation.note;
  return fmt::format("{} {} of lane {} ({}, chunk {}, after {} decisions)", name_of(operation.kind),
                     operation.index, name_of(operation.lane), note.what.empty() ? "no note" : note.what,
                     note.chunk, note.decision_count);
}

std::exception_ptr difference(const CommOperation& mine, const CommOperation& other) {
  const auto differs = [&](std::string reason) {
    return peer_error(
        {"ranks do not do the same", fmt::format("rank {}", other.rank), std::move(reason),
         "give all ranks the same program, whose calls come in the same order and as often on each"});
  };
  if (mine.kind != other.kind || mine.lane != other.lane || mine.index != other.index ||
      mine.note != other.note)
    return differs(
        fmt::format("it is at {}, where rank {} is at {}", text_of(other), mine.rank, text_of(mine)));
  if (mine.group != other.group)
    return differs(fmt::format("it has {} ranks from rank {} on in {}, where rank {} has {} from rank {} on",
                               other.group.count, other.group.first, text_of(other), mine.rank,
                               mine.group.count, mine.group.first));
  const CommPart sent = other.part_for(mine.rank), expected = mine.part_of(other.rank);
  const uint64_t bytes = sent.absent ? expected.bytes : sent.bytes;
  if (bytes == expected.bytes) return nullptr;
  return differs(fmt::format("it is in another call: it sends {} bytes in {}, where rank {} expects {}",
                             sent.bytes, text_of(other), mine.rank, expected.bytes));
}

std::string words_of_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "it failed";
  }
}

std::exception_ptr left_run(uint32_t rank, std::string why) {
  return peer_error({"a rank has left the run", fmt::format("rank {}", rank), std::move(why),
                     "go on from the last commit or checkpoint"});
}

std::exception_ptr failed_there(const CommOperation& mine, uint32_t rank, const std::exception_ptr& failure) {
  if (rank == mine.rank) return failure;
  return peer_error({fmt::format("cannot take part in {}", text_of(mine)), fmt::format("rank {}", rank),
                     words_of_failure(failure),
                     "see what that rank says; go on from the last commit or checkpoint"});
}

CommVerdict::CommVerdict(std::span<const PostedOperation> posted) {
  for (const PostedOperation& one : posted) {
    if (one.failure == nullptr) continue;
    failed_rank_ = one.operation.rank;
    failure_ = one.failure;
    break;
  }
  for (size_t a = 0; a < posted.size(); ++a) {
    for (size_t b = 0; b < posted.size() && difference_ == nullptr; ++b) {
      if (a != b) difference_ = difference(posted[a].operation, posted[b].operation);
    }
  }
}

std::exception_ptr CommVerdict::failure_of(const CommOperation& mine) const {
  if (difference_ != nullptr) return difference_;
  return failure_ != nullptr ? failed_there(mine, failed_rank_, failure_) : nullptr;
}

}  // namespace terrace
