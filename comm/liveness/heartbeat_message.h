// HeartbeatMessage: what ranks tell each other over the heartbeat, each as long as every other, in the
// machine's byte order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

// Where a rank is, as it says itself.
struct RankStanding {
  uint64_t step = 0;                              // in progress; 0 before the first
  std::array<uint64_t, kLaneCount> operations{};  // carried out, by lane
  uint64_t step_ns = 0;                           // of the last step; 0 before the end of the first
  uint64_t rank_wait_ns = 0;                      // of these, waiting for other ranks
  bool waits_for_ranks = false;
  std::string operation;  // what its step thread does; a long one is cut
};

// With what a rank leaves that has failed.
struct LastWords {
  uint32_t news = 0;    // stands for all of its message; 0: other ranks say why
  uint32_t status = 0;  // with which it would end
  bool operator==(const LastWords&) const = default;
};

// How another rank that has failed ends, as rank 0 tells it.
struct EndOfRank {
  std::string speaks_as;  // tells the user why, "as ranks 1 and 2"; empty: the user is told already
  uint32_t status = 0;    // of all ranks, since a launcher reports that of whichever ends first
  bool operator==(const EndOfRank&) const = default;
};

enum class HeartbeatWord : uint32_t {
  standing = 1,  // of `rank`; `age_ms` ago
  loss,          // `rank` has left: it died, by `signal` where that is known, or has said why in `text`
  farewell,      // the sender leaves: `text` says why, or is empty where its work is done
  ask,           // for the standings of all
  answered,      // the standings of all have been sent
  speak,         // of rank 0 to one that has left: EndOfRank, with `text` as `speaks_as`
  spoken,        // the sender has done what `speak` asks for
};

struct HeartbeatMessage {
  static constexpr uint32_t kMagic = 0x334f4c54;  // "TLO3"
  uint32_t magic = kMagic;
  HeartbeatWord word = HeartbeatWord::standing;
  uint32_t rank = 0;
  uint32_t signal = 0;
  uint32_t died = 0;
  uint32_t waits_for_ranks = 0;
  uint64_t age_ms = 0;
  uint64_t step = 0;
  std::array<uint64_t, kLaneCount> operations{};
  uint64_t step_ns = 0;
  uint64_t rank_wait_ns = 0;
  uint32_t news = 0;             // of a farewell: LastWords
  uint32_t status = 0;           // of a farewell, and of `speak`
  std::array<char, 448> text{};  // up to a 0
};
static_assert(sizeof(HeartbeatMessage) == 560, "no padding whose bytes nobody has set");

HeartbeatMessage message_of(HeartbeatWord word, uint32_t rank, std::string_view text = {});
HeartbeatMessage message_of(uint32_t rank, const RankStanding& standing, uint64_t age_ms);
std::string text_in(const HeartbeatMessage& message);
RankStanding standing_in(const HeartbeatMessage& message);

// Whether that rank may say this: rank 0 speaks of all ranks, and every other one of itself alone.
bool may_say(uint32_t sender, const HeartbeatMessage& message);

// Nothing where the bytes are no message of a run with so many ranks.
std::optional<HeartbeatMessage> read_message(std::span<const std::byte, sizeof(HeartbeatMessage)> bytes,
                                             uint32_t ranks);

}  // namespace terrace
