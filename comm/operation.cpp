#include <terrace/comm/operation.h>

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

std::exception_ptr peer_error(ErrorParts parts) {
  return std::make_exception_ptr(Error(ErrorKind::peer, std::move(parts)));
}

}  // namespace

Communicator::Communicator(uint32_t rank, std::vector<RankPlace> places)
    : rank_(rank), places_(std::move(places)) {
  TERRACE_ASSERT(rank < places_.size(), "the rank is one of the run");
}

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, kLaneCount> kNames = {"gather", "exchange", "control", "commit"};
  return kNames[index_of(lane)];
}

uint32_t CommOperation::rank_count() const {
  if (kind == CommKind::exchange) return static_cast<uint32_t>(to.size());
  return part_bytes > 0 ? static_cast<uint32_t>(whole.size() / part_bytes) : 0;
}

CommPart CommOperation::part_for(uint32_t other) const {
  if (kind == CommKind::exchange) return to[other];
  return {whole.data() + rank * part_bytes, part_bytes};
}

CommPart CommOperation::part_of(uint32_t other) const {
  if (kind == CommKind::exchange) return from[other];
  return {whole.data() + other * part_bytes, part_bytes};
}

std::string text_of(const CommOperation& operation) {
  const CommNote& note = operation.note;
  return fmt::format("{} {} of lane {} ({}, chunk {}, after {} decisions)", name_of(operation.kind),
                     operation.index, name_of(operation.lane), note.what.empty() ? "no note" : note.what,
                     note.chunk, note.decision_count);
}

std::exception_ptr difference(const CommOperation& mine, const CommOperation& other) {
  const auto differs = [&](std::string reason) {
    return peer_error({"ranks do not do the same", fmt::format("rank {}", other.rank), std::move(reason),
                       "give all ranks the same program, configuration and data"});
  };
  if (mine.kind != other.kind || mine.index != other.index || mine.note != other.note)
    return differs(
        fmt::format("it is at {}, where rank {} is at {}", text_of(other), mine.rank, text_of(mine)));
  const CommPart sent = other.part_for(mine.rank), expected = mine.part_of(other.rank);
  const uint64_t bytes = sent.absent ? expected.bytes : sent.bytes;
  if (bytes == expected.bytes) return nullptr;
  return differs(fmt::format("it sends {} bytes in {}, where rank {} expects {}", sent.bytes, text_of(other),
                             mine.rank, expected.bytes));
}

std::exception_ptr failed_there(const CommOperation& mine, uint32_t rank, const std::exception_ptr& failure) {
  if (rank == mine.rank) return failure;
  std::string reason = "it failed";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
  }
  return peer_error({fmt::format("cannot take part in {}", text_of(mine)), fmt::format("rank {}", rank),
                     std::move(reason), "see what that rank says; go on from the last commit or checkpoint"});
}

}  // namespace terrace
