// Communicator: how one rank of a run exchanges bytes with the others. It knows ranks, bytes, events and
// clocks; it must never know a tensor, a file, or a chunk but as a number in a note.
//
// An operation is a copy with partners: it waits for its `after`, completes its `done` once, and operations
// of a lane take effect in the order in which they were asked for. Lanes do not wait for each other, but for
// some that a communicator has in one order (NcclOptions::lanes). All ranks ask for the same operations of a
// lane in the same order; where they do not, the operation fails on all of them and says who differs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/copy_observer.h>
#include <terrace/base/event.h>
#include <terrace/comm/operations/rank_group.h>

namespace terrace {

class Pulls;

// The lanes between hosts are for what ranks of one place on their hosts exchange beside the other lanes.
enum class Lane : uint8_t { gather, exchange, gather_between_hosts, exchange_between_hosts, control, commit };
inline constexpr size_t kLaneCount = 6;
constexpr size_t index_of(Lane lane) {
  return static_cast<size_t>(lane);
}
std::string_view name_of(Lane lane);

struct RankPlace {
  uint32_t rank = 0;
  uint32_t host = 0;
  uint32_t local_rank = 0;  // among the ranks of the host
  std::string host_name;
  uint64_t process = 0;
};

// What an operation is about. Ranks compare their notes, and messages name them.
struct CommNote {
  std::string_view what;  // "parameters", "gradients"; lives as long as the operation
  uint32_t chunk = 0;
  uint64_t decision_count = 0;  // of the step, when the operation was asked for
  CopyNote recorded = {};       // who hears of it on this rank; compared with nobody's

  bool operator==(const CommNote& other) const {
    return what == other.what && chunk == other.chunk && decision_count == other.decision_count;
  }
};

// One rank's part of an exchange.
struct CommPart {
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  // There is nothing of that rank or for it, and no byte moves: a gradient that no operation made. The sender
  // says so, the receiver is told.
  bool absent = false;
};

struct LaneCounters {
  uint64_t operations = 0;
  uint64_t in_bytes = 0;   // received from other ranks
  uint64_t out_bytes = 0;  // sent to other ranks

  bool operator==(const LaneCounters&) const = default;
};
using CommCounters = std::array<LaneCounters, kLaneCount>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(places_.size()); }
  std::span<const RankPlace> places() const { return places_; }
  RankGroup all() const { return {0, 1, size()}; }

  // Both may be called by any one thread at a time for each lane, and block while too many operations of the
  // lane wait. `after` is null or was begun before; if it failed on one rank, the operation fails on all.
  // `done` was begun by the caller. Memory, parts and events stay as they are until `done` is done, which
  // says that the parts for this rank have arrived, and that those for the others will, whatever becomes of
  // the memory.

  // `whole` has size() parts of `part_bytes`. The own one, at rank() * part_bytes, is there after `after`;
  // the others arrive.
  virtual void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after,
                          Event& done, const CommNote& note) = 0;
  // to[r] goes to rank r, from[r] arrives from it, with as many bytes as that rank sends. The ranks of
  // `group`, of which this is one, take part; each of them asks for the same operation of the lane with the
  // same group, and an operation that fails does so on all of them. The own parts, and those of ranks outside
  // the group, are not looked at.
  virtual void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                               std::span<CommPart> from, const Event* after, Event& done,
                               const CommNote& note) = 0;
  void exchange(Lane lane, std::span<const CommPart> to, std::span<CommPart> from, const Event* after,
                Event& done, const CommNote& note) {
    exchange_within(all(), lane, to, from, after, done, note);
  }
  // Gives every rank the bytes of all, in the order of ranks, and blocks until they are there. `all` is
  // size() times as long as `mine`. Throws where an operation would fail. A lane has either ballots or
  // operations.
  virtual void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // This rank takes part in nothing from now on: everything of all ranks that is not over fails and names it.
  // Any thread may call it, more than once.
  virtual void leave(std::string why) = 0;

  virtual CommCounters counters() const = 0;

  // How this rank gets bytes of others whatever those are doing (comm/pull/pulls.h), beside the operations of
  // all lanes; null where the back end has no such way. It lives as long as this. What leaves or is lost here
  // is lost there.
  virtual Pulls* pulls() { return nullptr; }

  // Where the ranks are, once they have told each other, as many as there were. Before other threads ask.
  void set_places(std::vector<RankPlace> places);

 protected:
  // The rank is one of those at `places`.
  Communicator(uint32_t rank, std::vector<RankPlace> places);

 private:
  const uint32_t rank_;
  std::vector<RankPlace> places_;
};

}  // namespace terrace
