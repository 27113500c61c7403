// RankHandshake: the ranks of one run come to a socket of another rank, and show who they are. Whoever is no
// rank of the run, of another run for example, is told why it is refused, and goes.
//
// What is said, in the machine's byte order:
//   1. the rank that comes: a RankHello, with a number of its own
//   2. the other side: a RankWelcome with a number of its own, or one that refuses
//   3. the rank: its RankProof that it has the secret, over the hello and the other side's number
//   4. the other side: a RankWelcome with its own proof, or one that refuses
// Who comes proves first, so that nobody gets a hash made with the secret by connecting. What a version
// before this one reads of a refusal, and what it says first, have their places as they had.
//
// Words count for what is known of who says them. A rank of the run that takes it for another one ends the
// run for all, but only where it has proved the secret, or where the kernel says that it is a process of this
// user on this host. Without a secret, ranks of other hosts are taken in unproved: whoever uses this has to
// warn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/comm/connections/run_secret.h>
#include <terrace/comm/connections/stream_socket.h>

namespace terrace {

// What the connections of a run are for.
enum class RankChannel : uint32_t { messages = 1, heartbeat = 2 };

// Which run, and what for: both sides have the same.
struct RunKey {
  uint64_t run = 0;  // see run_number()
  uint32_t size = 1;
  RankChannel channel = RankChannel::messages;
  RunSecret secret = {};
  // Whether its ranks are all on this host, as far as a launcher has said.
  WhoComes who_comes = WhoComes::from_anywhere;
};
// The number of a run from its name: the same for all of its ranks, and hardly that of another run.
uint64_t run_number(std::string_view name);

struct RankHello {
  static constexpr uint32_t kMagic = 0x31484454;  // "TDH1"
  static constexpr uint32_t kVersion = 3;         // of all that the ranks send each other afterwards
  static constexpr size_t kOfAllVersions = 32;    // so many bytes have their places in every version
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t run = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
  RankChannel channel = RankChannel::messages;
  uint32_t port = 0;  // at which the rank itself listens, or 0
  RankNonce nonce{};
};
static_assert(sizeof(RankHello) == 64, "no padding whose bytes nobody has set");

struct RankWelcome {
  static constexpr size_t kOfAllVersions = 504;
  uint32_t magic = RankHello::kMagic;
  uint32_t refused = 0;
  std::array<char, 496> why{};  // up to a 0
  RankNonce nonce{};            // in the first one, and in later words a number for all ranks
  RankProof proof{};            // in the second one
};
static_assert(sizeof(RankWelcome) == 568, "no padding whose bytes nobody has set");

// With a number that is drawn for it.
RankHello hello_of(const RunKey& key, uint32_t rank, uint32_t port);
// RankVisit: the side of the rank that comes. Both functions return false, with the reason, where the other
// side says nothing until the deadline or is nobody whose words count, and throw Error(config) with its
// reason where it refuses. `who` is the other side, for messages.
class RankVisit {
 public:
  // Both arguments outlive this.
  RankVisit(const StreamSocket& socket, const RunKey& key) : socket_(socket), key_(key) {}
  // Steps 1 to 3.
  bool say_hello(uint32_t rank, uint32_t port, const Deadline& deadline, std::string_view who,
                 Reason& reason);
  // Step 4.
  bool read_welcome(const Deadline& deadline, std::string_view who, Reason& reason);

 private:
  bool read_answer(RankWelcome& answer, const Deadline& deadline, std::string_view who, Reason& reason);

  const StreamSocket& socket_;
  const RunKey& key_;
  std::vector<std::byte> said_;  // that both sides prove about
};

// A later word of a side that has welcomed this one; nothing, or an error, as above.
std::optional<RankWelcome> read_word(const StreamSocket& socket, const Deadline& deadline,
                                     std::string_view who, Reason& reason);
void write_refusal(const StreamSocket& socket, std::string_view why);
// Comes to the first of the places where the other side takes this rank in. Closed where none does: `reason`
// then says why the last one did not.
StreamSocket come_to(std::span<const RendezvousPlace> places, const RunKey& key, uint32_t rank,
                     Reason& reason);

class RankHandshake {
 public:
  struct Guest {
    StreamSocket socket;
    RankHello hello;
    bool is_known = false;  // it has proved the secret, or is of this user and host
  };
  // `listener` outlives this.
  RankHandshake(const ListeningSocket& listener, const RunKey& key)
      : listener_(listener), key_(key), guests_(key.size) {}

  // Takes in ranks from `first` on until the last of the run is there, one contradicts it, or the deadline
  // passes, and returns them by rank; those before `first`, and those that have not come, are empty.
  std::vector<std::optional<Guest>> take_in(uint32_t first, const Deadline& deadline);
  // The same without a wait, and of every rank: who has come since the last call.
  std::vector<Guest> take_in_those_that_came();
  // Where a rank of this run that is known takes it for another one, in what; empty where none did.
  const std::string& contradiction() const { return contradiction_; }
  // Why the last one who was refused was; empty where nobody was.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  // Who has come and has not yet shown who it is.
  struct Stranger {
    StreamSocket socket;
    Deadline patience;
    RankHello hello = {};
    RankProof proof = {};
    RankNonce nonce = {};      // that it was told
    bool is_answered = false;  // its hello, so that its proof is awaited
    size_t count = 0;          // of the bytes that are awaited now
  };
  void wait(const Deadline& deadline);
  void hear_all();
  void accept_all();
  bool hear(Stranger& stranger);
  bool take_hello(Stranger& stranger);
  bool take_proof(Stranger& stranger);
  bool answer(Stranger& stranger);
  std::string contradiction_in(const RankHello& hello) const;
  std::string why_not(const RankHello& hello, bool is_proved) const;
  bool settle(Stranger& stranger);

  const ListeningSocket& listener_;
  const RunKey key_;
  uint32_t first_ = 0;  // of the ranks that are awaited
  std::vector<Stranger> strangers_;
  std::vector<std::optional<Guest>> guests_;
  uint32_t guest_count_ = 0;
  std::string contradiction_, last_refusal_;
};

}  // namespace terrace
