#include <terrace/comm/rank_reception.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <terrace/base/error.h>

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
  return hello;
}

bool read_welcome(const StreamSocket& socket, const Deadline& deadline, std::string_view who,
                  std::string& reason) {
  RankWelcome welcome;
  if (!read_whole(socket, std::as_writable_bytes(std::span(&welcome, 1)), deadline, reason)) return false;
  if (welcome.magic != RankHello::kMagic) {
    reason = "what answers there is no rank of Terrace";
    return false;
  }
  if (welcome.refused == 0) return true;
  const std::string why(welcome.why.data(), strnlen(welcome.why.data(), welcome.why.size()));
  throw Error(ErrorKind::config, {"cannot join the other ranks", std::string(who), why,
                                  "start all ranks of a run at the same time, with one launcher"});
}

void write_refusal(const StreamSocket& socket, std::string_view why) {
  RankWelcome refusal;
  refusal.refused = 1;
  why.copy(refusal.why.data(), refusal.why.size() - 1);
  std::string ignored;
  write_whole(socket, std::as_bytes(std::span(&refusal, 1)), Deadline(std::chrono::seconds(0)), ignored);
}

// At one of the places somebody else may listen, or nobody may be reached.
StreamSocket come_to(std::span<const MeetingPlace> places, const RankHello& hello, std::string& reason) {
  for (const MeetingPlace& place : places) {
    const Deadline deadline(kForAnAddress);
    try {
      StreamSocket socket = connect_to(place, deadline, reason);
      if (socket.is_open() && write_whole(socket, std::as_bytes(std::span(&hello, 1)), deadline, reason) &&
          read_welcome(socket, deadline, text_of(place), reason))
        return socket;
    } catch (const Error& error) {
      reason = error.parts().reason;
    }
    reason = fmt::format("{}: {}", text_of(place), reason);
  }
  return {};
}

std::vector<std::optional<RankReception::Guest>> RankReception::take_in(uint32_t first,
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
void RankReception::wait(const Deadline& deadline) {
  std::vector<pollfd> watched;
  add_to(watched);
  Deadline until = deadline;
  if (!strangers_.empty()) until = until.at_most(std::chrono::seconds(1));  // their patience ends
  poll(watched.data(), watched.size(), until.left_ms());
  hear_all();
}

void RankReception::add_to(std::vector<pollfd>& watched) const {
  watched.push_back({listener_.fd(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) watched.push_back({stranger.socket.fd(), POLLIN, 0});
}

std::vector<RankReception::Guest> RankReception::take_in_those_that_came() {
  hear_all();
  std::vector<Guest> came;
  for (std::optional<Guest>& guest : guests_) {
    if (guest && guest->socket.is_open()) came.push_back({std::move(guest->socket), guest->hello});
  }
  return came;
}

void RankReception::hear_all() {
  std::erase_if(strangers_, [&](Stranger& stranger) { return hear(stranger); });
  accept_all();
}

void RankReception::accept_all() {
  while (strangers_.size() < kMostStrangers) {
    StreamSocket socket = listener_.accept();
    if (!socket.is_open()) return;
    strangers_.push_back({std::move(socket), {}, 0, Deadline(kPatience)});
  }
}

// True when it is settled who the stranger is.
bool RankReception::hear(Stranger& stranger) {
  const ssize_t count = recv(stranger.socket.fd(), stranger.bytes.data() + stranger.count,
                             stranger.bytes.size() - stranger.count, 0);
  if (count < 0 && is_transient(errno)) return stranger.patience.has_passed();
  if (count <= 0) return true;
  stranger.count += static_cast<size_t>(count);
  if (stranger.count < stranger.bytes.size()) return false;
  settle(stranger);
  return true;
}

// The rank that listens is the one before the first that it awaits; a launcher awaits all.
std::string RankReception::contradiction_in(const RankHello& hello) const {
  const auto differs = [&](const char* what, uint32_t mine, uint32_t other) {
    const std::string here = first_ == 0 ? "of the launcher" : fmt::format("on rank {}", first_ - 1);
    return fmt::format("{}: {} {}, {} on rank {}", what, mine, here, other, hello.rank);
  };
  if (hello.version != RankHello::kVersion)
    return differs("the version of what ranks say to each other", RankHello::kVersion, hello.version);
  return hello.size != key_.size ? differs("the number of ranks", key_.size, hello.size) : "";
}

std::string RankReception::why_not(const RankHello& hello) const {
  if (hello.magic != RankHello::kMagic) return "it is no rank of Terrace";
  if (hello.run != key_.run || hello.channel != key_.channel) return "the ranks of another run meet here";
  if (std::string difference = contradiction_in(hello); !difference.empty()) return difference;
  if (hello.rank < first_ || hello.rank >= key_.size)
    return fmt::format("rank {} is none of those that are awaited", hello.rank);
  if (guests_[hello.rank])
    return fmt::format("rank {} is here already; two runs may have been told to meet at one place",
                       hello.rank);
  return {};
}

void RankReception::settle(Stranger& stranger) {
  RankHello hello;
  std::memcpy(&hello, stranger.bytes.data(), sizeof hello);
  if (std::string why = why_not(hello); !why.empty()) {
    write_refusal(stranger.socket, why);
    const bool is_of_run = hello.magic == RankHello::kMagic && hello.run == key_.run;
    if (is_of_run && hello.channel == key_.channel) contradiction_ = contradiction_in(hello);
    last_refusal_ = std::move(why);
    return;
  }
  const RankWelcome welcome;
  std::string ignored;
  if (!write_whole(stranger.socket, std::as_bytes(std::span(&welcome, 1)), Deadline(kPatience), ignored))
    return;
  guests_[hello.rank] = Guest{std::move(stranger.socket), hello};
  ++guest_count_;
}

}  // namespace terrace
