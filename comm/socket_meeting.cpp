#include <terrace/comm/socket_meeting.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/comm/launcher_claim.h>
#include <terrace/comm/rank_reception.h>

namespace terrace {
namespace {

using Guests = std::vector<std::optional<RankReception::Guest>>;

// Where a rank listens, as rank 0 tells it.
struct Whereabouts {
  // Empty: on the host of rank 0, by whichever name that is reached.
  std::array<char, 64> host{};
  uint32_t port = 0;
};

// After their own time is up, ranks wait for what rank 0 says of those that are missing.
constexpr std::chrono::seconds kForRankZero(5);
constexpr std::chrono::milliseconds kFirstPause(5), kLongestPause(100);

RunKey key_of(const SocketMeeting& meeting) {
  return {run_number(meeting.run), meeting.size, RankChannel::messages, meeting.secret, meeting.who_comes};
}

std::string seconds_of(const SocketMeeting& meeting) {
  return fmt::format("{:g} s", std::chrono::duration<double>(meeting.timeout).count());
}

Error not_met(const MeetingPlace& place, std::string reason) {
  return Error(ErrorKind::peer,
               {"the ranks of the run do not meet", text_of(place), std::move(reason),
                "see what the missing ranks say; all ranks are started at the same time, and "
                "reach the host and port of rank 0"});
}

// "rank 2", "ranks 1, 3 and 4"; the first ones where there are many.
std::string text_of_some(std::span<const uint32_t> ranks) {
  constexpr size_t kNamed = 16;
  const size_t named = std::min(ranks.size(), kNamed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < named; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

std::string missing_in(const Guests& guests, uint32_t first) {
  std::vector<uint32_t> missing;
  for (uint32_t r = first; r < guests.size(); ++r) {
    if (!guests[r]) missing.push_back(r);
  }
  return text_of_some(missing);
}

Guests take_in(const SocketMeeting& meeting, const RunKey& key, const ListeningSocket& listener,
               uint32_t first, const Deadline& deadline) {
  RankReception reception(listener, key);
  Guests guests = reception.take_in(first, deadline);
  const auto is_there = [](const auto& guest) { return guest.has_value(); };
  if (std::all_of(guests.begin() + first, guests.end(), is_there)) return guests;
  const auto refuse_all = [&](const std::string& reason) {
    for (const auto& guest : guests) {
      if (guest) write_refusal(guest->socket, reason);
    }
  };
  if (!reception.contradiction().empty()) {
    refuse_all(reception.contradiction());
    throw Error(ErrorKind::config,
                {"ranks do not train the same", text_of(meeting.place), reception.contradiction(),
                 "start all ranks of a run with one launcher, which says how many they are, and the same "
                 "version of Terrace"});
  }
  std::string reason = fmt::format("{} of {} did not come within {}", missing_in(guests, first), meeting.size,
                                   seconds_of(meeting));
  if (!reception.last_refusal().empty())
    reason += fmt::format("; somebody else was refused: {}", reception.last_refusal());
  refuse_all(reason);
  throw not_met(meeting.place, reason);
}

std::vector<Whereabouts> whereabouts_of(const Guests& guests) {
  std::vector<Whereabouts> all(guests.size());
  for (uint32_t r = 1; r < guests.size(); ++r) {
    const std::string host = address_of_peer(guests[r]->socket);
    host.copy(all[r].host.data(), all[r].host.size() - 1);
    all[r].port = guests[r]->hello.port;
  }
  return all;
}

// Where ranks come over the network and nothing secret is given, nobody knows whose they are.
void warn_of_unknown(const SocketMeeting& meeting, const Guests& guests) {
  std::vector<uint32_t> unknown;
  for (uint32_t r = 1; r < guests.size(); ++r) {
    if (!guests[r]->is_known) unknown.push_back(r);
  }
  if (unknown.empty() || !meeting.warn) return;
  meeting.warn(fmt::format(
      "nothing shows whose {} {}: whoever reached {} could have come instead, and would have taken "
      "part in the training; set TERRACE_SECRET to the same random text (`openssl rand -hex 32`) for "
      "all ranks",
      text_of_some(unknown), unknown.size() == 1 ? "is" : "are", text_of(meeting.place)));
}

std::vector<StreamSocket> meet_as_first(const SocketMeeting& meeting) {
  const Deadline deadline(meeting.timeout);
  const ListeningSocket listener(meeting.place, meeting.who_comes);
  Guests guests = take_in(meeting, key_of(meeting), listener, 1, deadline);
  warn_of_unknown(meeting, guests);
  const std::vector<Whereabouts> all = whereabouts_of(guests);
  RankWelcome complete;
  complete.nonce = new_nonce();
  std::vector<StreamSocket> links(meeting.size);
  for (uint32_t r = 1; r < meeting.size; ++r) {
    std::string reason;
    links[r] = std::move(guests[r]->socket);
    const Deadline soon(kForRankZero);
    if (!write_whole(links[r], std::as_bytes(std::span(&complete, 1)), soon, reason) ||
        !write_whole(links[r], std::as_bytes(std::span(all)), soon, reason))
      throw not_met(meeting.place, fmt::format("rank {} has left: {}", r, reason));
  }
  return links;
}

MeetingPlace own_place(const SocketMeeting& meeting, uint32_t rank) {
  if (meeting.place.socket.empty()) return {};
  return {.socket = meeting.place.socket.native() + fmt::format(".{}", rank)};
}

MeetingPlace place_of(const SocketMeeting& meeting, uint32_t rank, const Whereabouts& whereabouts) {
  if (!meeting.place.socket.empty()) return own_place(meeting, rank);
  const std::string host(whereabouts.host.data(), strnlen(whereabouts.host.data(), whereabouts.host.size()));
  return {.host = host.empty() ? meeting.place.host : host, .port = static_cast<uint16_t>(whereabouts.port)};
}

// Where this rank listens for those of higher number: at the address by which it has reached rank 0, since
// those come to that one too; beside rank 0 at the addresses of rank 0.
ListeningSocket listen_as_reached(const SocketMeeting& meeting, const StreamSocket& first) {
  if (!meeting.place.socket.empty())
    return ListeningSocket(own_place(meeting, meeting.rank), meeting.who_comes);
  const bool is_beside = address_of_peer(first).empty();
  return ListeningSocket({.host = is_beside ? meeting.place.host : own_address(first)}, meeting.who_comes);
}

// A rank that has come to rank 0, and listens.
struct Arrival {
  StreamSocket first;
  ListeningSocket listener;
};

// Rank 0 may be started later than this one.
Arrival come_to_first(const SocketMeeting& meeting, const Deadline& deadline) {
  const RunKey key = key_of(meeting);
  const std::string who = text_of(meeting.place);
  std::string why;
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    std::string reason;
    StreamSocket socket = connect_to(meeting.place, deadline, reason);
    if (socket.is_open()) {
      ListeningSocket listener = listen_as_reached(meeting, socket);
      RankVisit visit(socket, key);
      if (visit.say_hello(meeting.rank, listener.port(), deadline, who, reason) &&
          visit.read_welcome(deadline, who, reason))
        return {std::move(socket), std::move(listener)};
    }
    // That the last try had no time left says nothing.
    if (why.empty() || !deadline.has_passed()) why = std::move(reason);
    if (deadline.has_passed())
      throw not_met(meeting.place,
                    fmt::format("rank 0 was not there within {}: {}", seconds_of(meeting), why));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

// When all have come: where they are, and what they show each other to have come.
struct Company {
  std::vector<Whereabouts> places;
  RunKey key;
};

Company wait_for_all(const SocketMeeting& meeting, const StreamSocket& first) {
  const Deadline deadline(meeting.timeout + kForRankZero);
  Company company{std::vector<Whereabouts>(meeting.size), key_of(meeting)};
  std::string reason;
  const std::optional<RankWelcome> complete = read_word(first, deadline, text_of(meeting.place), reason);
  if (!complete || !read_whole(first, std::as_writable_bytes(std::span(company.places)), deadline, reason))
    throw not_met(meeting.place, fmt::format("rank 0 has left: {}", reason));
  company.key.secret = meeting.secret.with(complete->nonce);
  return company;
}

// A rank first comes to all of lower number, and then takes in those of higher number. So nobody waits in a
// circle: who is waited for waits for lower ones alone.
std::vector<StreamSocket> meet_as_other(const SocketMeeting& meeting) {
  Arrival arrival = come_to_first(meeting, Deadline(meeting.timeout));
  std::vector<StreamSocket> links(meeting.size);
  links[0] = std::move(arrival.first);
  const Company company = wait_for_all(meeting, links[0]);
  const Deadline soon(meeting.timeout);
  for (uint32_t r = 1; r < meeting.rank; ++r) {
    std::string reason;
    const MeetingPlace place = place_of(meeting, r, company.places[r]);
    const std::string who = fmt::format("rank {}", r);
    links[r] = connect_to(place, soon, reason);
    RankVisit visit(links[r], company.key);
    if (!links[r].is_open() || !visit.say_hello(meeting.rank, 0, soon, who, reason) ||
        !visit.read_welcome(soon, who, reason))
      throw not_met(place, fmt::format("rank {} cannot be reached: {}", r, reason));
  }
  Guests guests = take_in(meeting, company.key, arrival.listener, meeting.rank + 1, soon);
  for (uint32_t r = meeting.rank + 1; r < meeting.size; ++r) links[r] = std::move(guests[r]->socket);
  return links;
}

}  // namespace

SocketMeeting meeting_of(const RankIdentity& identity, const Environment& variables) {
  if (!identity.meeting)
    throw Error(
        ErrorKind::config,
        {"cannot join the other ranks", fmt::format("rank {} of {}", identity.rank, identity.size),
         "nothing says where they meet",
         "set MASTER_ADDR and MASTER_PORT, or TERRACE_MEET to HOST:PORT or the path of a socket; where "
         "only one process was started, unset the variables of " +
             std::string(name_of(identity.launcher))});
  SocketMeeting meeting{.rank = identity.rank, .size = identity.size, .place = *identity.meeting};
  constexpr uint16_t kLastPort = 65535;
  if (variable_text(variables, "TERRACE_MEET") == nullptr) {
    const uint16_t port = meeting.place.port;
    meeting.place.port = static_cast<uint16_t>(port < kLastPort ? port + 1 : port - 1);
  }
  for (const char* const name : {"TORCHELASTIC_RUN_ID", "TERRACE_RUN"}) {
    if (const std::string* const run = variable_text(variables, name)) meeting.run = *run;
  }
  meeting.secret = secret_of(variables);
  if (identity.local_size)
    meeting.who_comes =
        *identity.local_size == identity.size ? WhoComes::from_here : WhoComes::from_elsewhere_too;
  return meeting;
}

std::vector<StreamSocket> meet(const SocketMeeting& meeting) {
  TERRACE_ASSERT(meeting.rank < meeting.size, "the rank is one of the run");
  if (meeting.size == 1) return std::vector<StreamSocket>(1);
  return meeting.rank == 0 ? meet_as_first(meeting) : meet_as_other(meeting);
}

}  // namespace terrace
