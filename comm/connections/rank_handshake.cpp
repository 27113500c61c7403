#include <terrace/comm/connections/rank_handshake.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/comm/connections/peer_user.h>

namespace terrace {
namespace {

// Whoever connects and says nothing is a stranger, and there is no room for any number of them.
constexpr std::chrono::seconds kPatience(5);
constexpr size_t kMostStrangers = 512;
constexpr std::chrono::seconds kForAnAddress(2);

}  // namespace

// FNV-1a.
uint64_t run_number(std::string_view name) {
  uint64_t number = 0xcbf29ce484222325;
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return number;
}

RankHello hello_of(const RunKey& key, uint32_t rank, uint32_t port) {
  RankHello hello;
  hello.run = key.run;
  hello.rank = rank;
  hello.size = key.size;
  hello.channel = key.channel;
  hello.port = port;
  hello.nonce = new_nonce();
  return hello;
}

namespace {

template <typename Words>
std::span<const std::byte> bytes_of(const Words& words) {
  return std::as_bytes(std::span(&words, 1));
}
template <typename Words>
std::span<std::byte> room_in(Words& words) {
  return std::as_writable_bytes(std::span(&words, 1));
}

// What both sides prove about: all that was said before.
std::vector<std::byte> said_by(const RankHello& hello, const RankNonce& nonce) {
  std::vector<std::byte> said(bytes_of(hello).begin(), bytes_of(hello).end());
  said.insert(said.end(), nonce.begin(), nonce.end());
  return said;
}

bool is_welcome(const RankWelcome& answer, std::string_view who, Reason& reason) {
  if (answer.magic != RankHello::kMagic) {
    reason = "what answers there is no rank of Terrace";
    return false;
  }
  if (answer.refused == 0) return true;
  const std::string why(answer.why.data(), strnlen(answer.why.data(), answer.why.size()));
  throw Error(ErrorKind::config, {"cannot join the other ranks", std::string(who), why,
                                  "start all ranks of a run at the same time, with one launcher"});
}

// A version before this one says less where it refuses.
bool read_all_of(const StreamSocket& socket, RankWelcome& answer, const Deadline& deadline, Reason& reason) {
  const std::span<std::byte> room = room_in(answer);
  if (!read_whole(socket, room.first(RankWelcome::kOfAllVersions), deadline, reason)) return false;
  return answer.refused != 0 ||
         read_whole(socket, room.subspan(RankWelcome::kOfAllVersions), deadline, reason);
}

// What is known of the other side beside its proof.
struct Standing {
  bool is_own = false;      // a process of this user on this host
  std::string why_no_rank;  // why its words count for nothing, whatever it says; empty where they may count
};

// With a secret over TCP that decides: the other side may be in a container that has other users.
Standing standing_of(const StreamSocket& socket, const RunKey& key) {
  int domain = 0;
  socklen_t length = sizeof domain;
  getsockopt(socket.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
  if (domain != AF_UNIX && key.secret.is_given()) return {};
  const PeerUser other = peer_user_of(socket);
  std::string why = why_not_own(other);
  if (other.is_here || why.empty()) return {why.empty(), std::move(why)};
  return {false, key.who_comes == WhoComes::from_here ? std::move(why) : std::string()};
}

constexpr const char* kHowToProve =
    "; where ranks are processes of several users, or on several hosts, set TERRACE_SECRET to the same "
    "random "
    "text for all of them";

}  // namespace

bool RankVisit::read_answer(RankWelcome& answer, const Deadline& deadline, std::string_view who,
                            Reason& reason) {
  return read_all_of(socket_, answer, deadline, reason) && is_welcome(answer, who, reason);
}

bool RankVisit::say_hello(uint32_t rank, uint32_t port, const Deadline& deadline, std::string_view who,
                          Reason& reason) {
  const RankHello hello = hello_of(key_, rank, port);
  RankWelcome answer;
  if (!write_whole(socket_, bytes_of(hello), deadline, reason) ||
      !read_all_of(socket_, answer, deadline, reason))
    return false;
  // Only a connection that the other side has taken up has an owner there, so this comes after its answer.
  if (const std::string why = standing_of(socket_, key_).why_no_rank; !why.empty()) {
    reason = fmt::format("who listens there is not believed: {}{}", why, kHowToProve);
    return false;
  }
  if (!is_welcome(answer, who, reason)) return false;
  said_ = said_by(hello, answer.nonce);
  return write_whole(socket_, key_.secret.proof(ProvingSide::comes, said_), deadline, reason);
}

bool RankVisit::read_welcome(const Deadline& deadline, std::string_view who, Reason& reason) {
  RankWelcome answer;
  if (!read_answer(answer, deadline, who, reason)) return false;
  if (key_.secret.proves(ProvingSide::listens, said_, answer.proof)) return true;
  reason = "who listens there does not prove the secret of the run";
  return false;
}

std::optional<RankWelcome> read_word(const StreamSocket& socket, const Deadline& deadline,
                                     std::string_view who, Reason& reason) {
  RankWelcome answer;
  if (!read_all_of(socket, answer, deadline, reason) || !is_welcome(answer, who, reason)) return std::nullopt;
  return answer;
}

void write_refusal(const StreamSocket& socket, std::string_view why) {
  RankWelcome refusal;
  refusal.refused = 1;
  why.copy(refusal.why.data(), refusal.why.size() - 1);
  Reason ignored;
  write_whole(socket, std::as_bytes(std::span(&refusal, 1)), Deadline(std::chrono::seconds(0)), ignored);
}

// At one of the places somebody else may listen, or nobody may be reached.
StreamSocket come_to(std::span<const RendezvousPlace> places, const RunKey& key, uint32_t rank,
                     Reason& reason) {
  for (const RendezvousPlace& place : places) {
    const Deadline deadline(kForAnAddress);
    try {
      StreamSocket socket = connect_to(place, deadline, reason);
      RankVisit visit(socket, key);
      if (socket.is_open() && visit.say_hello(rank, 0, deadline, text_of(place), reason) &&
          visit.read_welcome(deadline, text_of(place), reason))
        return socket;
    } catch (const Error& error) {
      reason = error.parts().why();
    }
    reason = text_of(place) + ": " + reason;
  }
  return {};
}

std::vector<std::optional<RankHandshake::Guest>> RankHandshake::take_in(uint32_t first,
                                                                        const Deadline& deadline) {
  first_ = first;
  guests_.clear();
  guests_.resize(key_.size);
  guest_count_ = 0;
  while (first_ + guest_count_ < key_.size && contradiction_.empty() && !deadline.has_passed())
    wait(deadline);
  strangers_.clear();
  return std::move(guests_);
}

// Waits for somebody to come or to speak, and hears who does.
void RankHandshake::wait(const Deadline& deadline) {
  std::vector<pollfd> watched;
  for (const StreamSocket& socket : listener_.sockets()) watched.push_back({socket.fd(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) watched.push_back({stranger.socket.fd(), POLLIN, 0});
  Deadline until = deadline;
  if (!strangers_.empty()) until = until.at_most(std::chrono::seconds(1));  // their patience ends
  poll(watched.data(), watched.size(), until.left_ms());
  hear_all();
}

std::vector<RankHandshake::Guest> RankHandshake::take_in_those_that_came() {
  hear_all();
  std::vector<Guest> came;
  for (std::optional<Guest>& guest : guests_) {
    if (guest && guest->socket.is_open())
      came.push_back({std::move(guest->socket), guest->hello, guest->is_known});
  }
  return came;
}

void RankHandshake::hear_all() {
  std::erase_if(strangers_, [&](Stranger& stranger) { return hear(stranger); });
  accept_all();
}

void RankHandshake::accept_all() {
  while (strangers_.size() < kMostStrangers) {
    StreamSocket socket = listener_.accept();
    if (!socket.is_open()) return;
    strangers_.push_back({.socket = std::move(socket), .patience = Deadline(kPatience)});
  }
}

// True when it is settled who the stranger is.
bool RankHandshake::hear(Stranger& stranger) {
  const std::span<std::byte> room =
      (stranger.is_answered ? room_in(stranger.proof) : room_in(stranger.hello)).subspan(stranger.count);
  const ssize_t count = recv(stranger.socket.fd(), room.data(), room.size(), 0);
  if (count < 0 && is_transient(errno)) return stranger.patience.has_passed();
  if (count <= 0) return true;
  stranger.count += static_cast<size_t>(count);
  return stranger.is_answered ? take_proof(stranger) : take_hello(stranger);
}

// A version before this one says no more than what all versions do.
bool RankHandshake::take_hello(Stranger& stranger) {
  const RankHello& hello = stranger.hello;
  if (stranger.count < RankHello::kOfAllVersions) return false;
  if (hello.magic != RankHello::kMagic || hello.version != RankHello::kVersion) return settle(stranger);
  return stranger.count == sizeof hello && answer(stranger);
}

bool RankHandshake::answer(Stranger& stranger) {
  stranger.nonce = new_nonce();
  stranger.is_answered = true;
  stranger.count = 0;
  RankWelcome first;
  first.nonce = stranger.nonce;
  Reason ignored;
  return !write_whole(stranger.socket, bytes_of(first), Deadline(std::chrono::seconds(0)), ignored);
}

bool RankHandshake::take_proof(Stranger& stranger) {
  return stranger.count == sizeof stranger.proof && settle(stranger);
}

// The rank that listens is the one before the first that it awaits.
std::string RankHandshake::contradiction_in(const RankHello& hello) const {
  const auto differs = [&](const char* what, uint32_t mine, uint32_t other) {
    const std::string here = first_ == 0 ? "here" : fmt::format("on rank {}", first_ - 1);
    return fmt::format("{}: {} {}, {} on rank {}", what, mine, here, other, hello.rank);
  };
  if (hello.version != RankHello::kVersion)
    return differs("the version of what ranks say to each other", RankHello::kVersion, hello.version);
  return hello.size != key_.size ? differs("the number of ranks", key_.size, hello.size) : "";
}

std::string RankHandshake::why_not(const RankHello& hello, bool is_proved) const {
  if (hello.magic != RankHello::kMagic) return "it is no rank of Terrace";
  if (hello.run != key_.run || hello.channel != key_.channel) return "the ranks of another run meet here";
  if (hello.version == RankHello::kVersion && !is_proved)
    return fmt::format(
        "rank {} does not prove the secret of the run: set TERRACE_SECRET to the same text for "
        "all of its ranks, or for none",
        hello.rank);
  if (std::string difference = contradiction_in(hello); !difference.empty()) return difference;
  if (hello.rank < first_ || hello.rank >= key_.size)
    return fmt::format("rank {} is none of those that are awaited", hello.rank);
  if (guests_[hello.rank])
    return fmt::format("rank {} is here already; two runs may have been told to meet at one place",
                       hello.rank);
  return {};
}

// Returns true: it is settled.
bool RankHandshake::settle(Stranger& stranger) {
  const RankHello& hello = stranger.hello;
  const Standing standing = standing_of(stranger.socket, key_);
  const bool is_proved =
      stranger.is_answered &&
      key_.secret.proves(ProvingSide::comes, said_by(hello, stranger.nonce), stranger.proof);
  const bool is_known = key_.secret.is_given() ? is_proved : standing.is_own;
  std::string why =
      standing.why_no_rank.empty() ? why_not(hello, is_proved) : standing.why_no_rank + kHowToProve;
  if (!why.empty()) {
    const bool is_of_run = hello.magic == RankHello::kMagic && hello.run == key_.run;
    if (is_known && is_of_run && hello.channel == key_.channel) contradiction_ = contradiction_in(hello);
    write_refusal(stranger.socket, why);
    last_refusal_ = std::move(why);
    return true;
  }
  RankWelcome welcome;
  welcome.proof = key_.secret.proof(ProvingSide::listens, said_by(hello, stranger.nonce));
  Reason ignored;
  if (!write_whole(stranger.socket, bytes_of(welcome), Deadline(kPatience), ignored)) return true;
  guests_[hello.rank] = Guest{std::move(stranger.socket), hello, is_known};
  ++guest_count_;
  return true;
}

}  // namespace terrace
