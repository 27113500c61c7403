// RankReception: the ranks of one run come to a socket of another rank, or of their launcher, and say who
// they are. Whoever is no rank of the run, of another run for example, is told why it is refused, and goes.
//
// Both sides have the machine's byte order. The rank that comes sends a RankHello; the other one answers with
// a RankWelcome.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/comm/stream_socket.h>

namespace terrace {

// What the connections of a run are for.
enum class RankChannel : uint32_t { messages = 1, lookout = 2, launcher = 3 };

// Which run, and what for: both sides have the same.
struct RunKey {
  uint64_t run = 0;  // see run_number()
  uint32_t size = 1;
  RankChannel channel = RankChannel::messages;
};
// The number of a run from its name: the same for all of its ranks, and hardly that of another run.
uint64_t run_number(std::string_view name);

struct RankHello {
  static constexpr uint32_t kMagic = 0x31484454;  // "TDH1"
  static constexpr uint32_t kVersion = 2;         // of all that the ranks send each other afterwards
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t run = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
  RankChannel channel = RankChannel::messages;
  uint32_t port = 0;  // at which the rank itself listens, or 0
};
static_assert(sizeof(RankHello) == 32, "no padding whose bytes nobody has set");

struct RankWelcome {
  uint32_t magic = RankHello::kMagic;
  uint32_t refused = 0;
  std::array<char, 496> why{};  // up to a 0
};
static_assert(sizeof(RankWelcome) == 504, "no padding whose bytes nobody has set");

RankHello hello_of(const RunKey& key, uint32_t rank, uint32_t port);
// Throws Error(config) with the reason where the other side refuses, and returns false, with the reason,
// where it says nothing until the deadline.
bool read_welcome(const StreamSocket& socket, const Deadline& deadline, std::string_view who,
                  std::string& reason);
void write_refusal(const StreamSocket& socket, std::string_view why);
// Comes to the first of the places where the other side takes this rank in. Closed where none does: `reason`
// then says why the last one did not.
StreamSocket come_to(std::span<const MeetingPlace> places, const RankHello& hello, std::string& reason);

class RankReception {
 public:
  struct Guest {
    StreamSocket socket;
    RankHello hello;
  };
  // `listener` outlives this.
  RankReception(const ListeningSocket& listener, const RunKey& key)
      : listener_(listener), key_(key), guests_(key.size) {}

  // Takes in ranks from `first` on until the last of the run is there, one contradicts it, or the deadline
  // passes, and returns them by rank; those before `first`, and those that have not come, are empty.
  std::vector<std::optional<Guest>> take_in(uint32_t first, const Deadline& deadline);
  // The same for a launcher, which waits for other things too and awaits every rank: what to wait for, and
  // who has come since the last call.
  void add_to(std::vector<pollfd>& watched) const;
  std::vector<Guest> take_in_those_that_came();
  // Where a rank of this run takes it for another one, in what; empty where none did.
  const std::string& contradiction() const { return contradiction_; }
  // Why the last one who was refused was; empty where nobody was.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  // Who has come and has not yet said who it is.
  struct Stranger {
    StreamSocket socket;
    std::array<std::byte, sizeof(RankHello)> bytes{};
    size_t count = 0;
    Deadline patience;
  };
  void wait(const Deadline& deadline);
  void hear_all();
  void accept_all();
  bool hear(Stranger& stranger);
  std::string contradiction_in(const RankHello& hello) const;
  std::string why_not(const RankHello& hello) const;
  void settle(Stranger& stranger);

  const ListeningSocket& listener_;
  const RunKey key_;
  uint32_t first_ = 0;  // of the ranks that are awaited
  std::vector<Stranger> strangers_;
  std::vector<std::optional<Guest>> guests_;
  uint32_t guest_count_ = 0;
  std::string contradiction_, last_refusal_;
};

}  // namespace terrace
