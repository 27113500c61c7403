#include <terrace/comm/ports/socket/socket_rendezvous.h>

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
#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/identity/launcher_claim.h>

namespace terrace {
namespace {

using Guests = std::vector<std::optional<RankHandshake::Guest>>;

// Where a rank listens, as rank 0 tells it.
struct Whereabouts {
  // Empty: on the host of rank 0, by whichever name that is reached.
  std::array<char, 64> host{};
  uint32_t port = 0;
};

// After their own time is up, ranks wait for what rank 0 says of those that are missing.
constexpr std::chrono::seconds kForRankZero(5);
constexpr std::chrono::milliseconds kFirstPause(5), kLongestPause(100);

RunKey key_of(const SocketRendezvous& rendezvous) {
  return {run_number(rendezvous.run), rendezvous.size, RankChannel::messages, rendezvous.secret,
          rendezvous.who_comes};
}

std::string seconds_of(const SocketRendezvous& rendezvous) {
  return fmt::format("{:g} s", std::chrono::duration<double>(rendezvous.timeout).count());
}

Error not_met(const RendezvousPlace& place, Reason reason) {
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

Guests take_in(const SocketRendezvous& rendezvous, const RunKey& key, const ListeningSocket& listener,
               uint32_t first, const Deadline& deadline) {
  RankHandshake handshake(listener, key);
  Guests guests = handshake.take_in(first, deadline);
  const auto is_there = [](const auto& guest) { return guest.has_value(); };
  if (std::all_of(guests.begin() + first, guests.end(), is_there)) return guests;
  const auto refuse_all = [&](const std::string& reason) {
    for (const auto& guest : guests) {
      if (guest) write_refusal(guest->socket, reason);
    }
  };
  if (!handshake.contradiction().empty()) {
    refuse_all(handshake.contradiction());
    throw Error(ErrorKind::config,
                {"ranks do not train the same", text_of(rendezvous.place), handshake.contradiction(),
                 "start all ranks of a run with one launcher, which says how many they are, and the same "
                 "version of Terrace"});
  }
  std::string reason = fmt::format("{} of {} did not come within {}", missing_in(guests, first),
                                   rendezvous.size, seconds_of(rendezvous));
  if (!handshake.last_refusal().empty())
    reason += fmt::format("; somebody else was refused: {}", handshake.last_refusal());
  refuse_all(reason);
  throw not_met(rendezvous.place, reason);
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
void warn_of_unknown(const SocketRendezvous& rendezvous, const Guests& guests) {
  std::vector<uint32_t> unknown;
  for (uint32_t r = 1; r < guests.size(); ++r) {
    if (!guests[r]->is_known) unknown.push_back(r);
  }
  if (unknown.empty() || !rendezvous.warn) return;
  rendezvous.warn(fmt::format(
      "nothing shows whose {} {}: whoever reached {} could have come instead, and would have taken "
      "part in the training; set TERRACE_SECRET to the same random text (`openssl rand -hex 32`) for "
      "all ranks",
      text_of_some(unknown), unknown.size() == 1 ? "is" : "are", text_of(rendezvous.place)));
}

std::vector<StreamSocket> meet_as_first(const SocketRendezvous& rendezvous) {
  const Deadline deadline(rendezvous.timeout);
  const ListeningSocket listener(rendezvous.place, rendezvous.who_comes);
  Guests guests = take_in(rendezvous, key_of(rendezvous), listener, 1, deadline);
  warn_of_unknown(rendezvous, guests);
  const std::vector<Whereabouts> all = whereabouts_of(guests);
  RankWelcome complete;
  complete.nonce = new_nonce();
  std::vector<StreamSocket> links(rendezvous.size);
  for (uint32_t r = 1; r < rendezvous.size; ++r) {
    Reason reason;
    links[r] = std::move(guests[r]->socket);
    const Deadline soon(kForRankZero);
    if (!write_whole(links[r], std::as_bytes(std::span(&complete, 1)), soon, reason) ||
        !write_whole(links[r], std::as_bytes(std::span(all)), soon, reason))
      throw not_met(rendezvous.place, fmt::format("rank {} has left: ", r) + reason);
  }
  return links;
}

RendezvousPlace own_place(const SocketRendezvous& rendezvous, uint32_t rank) {
  if (rendezvous.place.socket.empty()) return {};
  return {.socket = rendezvous.place.socket.native() + fmt::format(".{}", rank)};
}

RendezvousPlace place_of(const SocketRendezvous& rendezvous, uint32_t rank, const Whereabouts& whereabouts) {
  if (!rendezvous.place.socket.empty()) return own_place(rendezvous, rank);
  const std::string host(whereabouts.host.data(), strnlen(whereabouts.host.data(), whereabouts.host.size()));
  return {.host = host.empty() ? rendezvous.place.host : host,
          .port = static_cast<uint16_t>(whereabouts.port)};
}

// Where this rank listens for those of higher number: at the address by which it has reached rank 0, since
// those come to that one too; beside rank 0 at the addresses of rank 0.
ListeningSocket listen_as_reached(const SocketRendezvous& rendezvous, const StreamSocket& first) {
  if (!rendezvous.place.socket.empty())
    return ListeningSocket(own_place(rendezvous, rendezvous.rank), rendezvous.who_comes);
  const bool is_beside = address_of_peer(first).empty();
  return ListeningSocket({.host = is_beside ? rendezvous.place.host : own_address(first)},
                         rendezvous.who_comes);
}

// A rank that has come to rank 0, and listens.
struct Arrival {
  StreamSocket first;
  ListeningSocket listener;
};

// Rank 0 may be started later than this one.
Arrival come_to_first(const SocketRendezvous& rendezvous, const Deadline& deadline) {
  const RunKey key = key_of(rendezvous);
  const std::string who = text_of(rendezvous.place);
  Reason why;
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    Reason reason;
    StreamSocket socket = connect_to(rendezvous.place, deadline, reason);
    if (socket.is_open()) {
      ListeningSocket listener = listen_as_reached(rendezvous, socket);
      RankVisit visit(socket, key);
      if (visit.say_hello(rendezvous.rank, listener.port(), deadline, who, reason) &&
          visit.read_welcome(deadline, who, reason))
        return {std::move(socket), std::move(listener)};
    }
    // That the last try had no time left says nothing.
    if (why.text.empty() || !deadline.has_passed()) why = std::move(reason);
    if (deadline.has_passed())
      throw not_met(rendezvous.place,
                    fmt::format("rank 0 was not there within {}: ", seconds_of(rendezvous)) + why);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

// When all have come: where they are, and what they show each other to have come.
struct Company {
  std::vector<Whereabouts> places;
  RunKey key;
};

Company wait_for_all(const SocketRendezvous& rendezvous, const StreamSocket& first) {
  const Deadline deadline(rendezvous.timeout + kForRankZero);
  Company company{std::vector<Whereabouts>(rendezvous.size), key_of(rendezvous)};
  Reason reason;
  const std::optional<RankWelcome> complete = read_word(first, deadline, text_of(rendezvous.place), reason);
  if (!complete || !read_whole(first, std::as_writable_bytes(std::span(company.places)), deadline, reason))
    throw not_met(rendezvous.place, "rank 0 has left: " + reason);
  company.key.secret = rendezvous.secret.with(complete->nonce);
  return company;
}

// A rank first comes to all of lower number, and then takes in those of higher number. So nobody waits in a
// circle: who is waited for waits for lower ones alone.
std::vector<StreamSocket> meet_as_other(const SocketRendezvous& rendezvous) {
  Arrival arrival = come_to_first(rendezvous, Deadline(rendezvous.timeout));
  std::vector<StreamSocket> links(rendezvous.size);
  links[0] = std::move(arrival.first);
  const Company company = wait_for_all(rendezvous, links[0]);
  const Deadline soon(rendezvous.timeout);
  for (uint32_t r = 1; r < rendezvous.rank; ++r) {
    Reason reason;
    const RendezvousPlace place = place_of(rendezvous, r, company.places[r]);
    const std::string who = fmt::format("rank {}", r);
    links[r] = connect_to(place, soon, reason);
    RankVisit visit(links[r], company.key);
    if (!links[r].is_open() || !visit.say_hello(rendezvous.rank, 0, soon, who, reason) ||
        !visit.read_welcome(soon, who, reason))
      throw not_met(place, fmt::format("rank {} cannot be reached: ", r) + reason);
  }
  Guests guests = take_in(rendezvous, company.key, arrival.listener, rendezvous.rank + 1, soon);
  for (uint32_t r = rendezvous.rank + 1; r < rendezvous.size; ++r) links[r] = std::move(guests[r]->socket);
  return links;
}

}  // namespace

SocketRendezvous rendezvous_of(const RankIdentity& identity, const Environment& variables) {
  if (!identity.rendezvous)
    throw Error(
        ErrorKind::config,
        {"cannot join the other ranks", fmt::format("rank {} of {}", identity.rank, identity.size),
         "nothing says where they meet",
         "set MASTER_ADDR and MASTER_PORT, or TERRACE_MEET to HOST:PORT or the path of a socket; where "
         "only one process was started, unset the variables of " +
             std::string(name_of(identity.launcher))});
  SocketRendezvous rendezvous{.rank = identity.rank, .size = identity.size, .place = *identity.rendezvous};
  constexpr uint16_t kLastPort = 65535;
  if (variable_text(variables, "TERRACE_MEET") == nullptr) {
    const uint16_t port = rendezvous.place.port;
    rendezvous.place.port = static_cast<uint16_t>(port < kLastPort ? port + 1 : port - 1);
  }
  for (const char* const name : {"TORCHELASTIC_RUN_ID", "TERRACE_RUN"}) {
    if (const std::string* const run = variable_text(variables, name)) rendezvous.run = *run;
  }
  rendezvous.secret = secret_of(variables);
  if (identity.local_size)
    rendezvous.who_comes =
        *identity.local_size == identity.size ? WhoComes::from_here : WhoComes::from_elsewhere_too;
  return rendezvous;
}

std::vector<StreamSocket> meet(const SocketRendezvous& rendezvous) {
  TERRACE_ASSERT(rendezvous.rank < rendezvous.size, "the rank is one of the run");
  if (rendezvous.size == 1) return std::vector<StreamSocket>(1);
  return rendezvous.rank == 0 ? meet_as_first(rendezvous) : meet_as_other(rendezvous);
}

}  // namespace terrace
