#include <terrace/comm/liveness/heartbeat_rendezvous.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/identity/own_addresses.h>

namespace terrace {
namespace {

using std::chrono::seconds;

constexpr seconds kToCome(10);

// Where rank 0 listens: at a name on its host, or at a port of these addresses. All are empty where it does
// not. The secret is told to the ranks alone, by the connections that they have.
struct Invitation {
  uint64_t run = 0;
  RankNonce secret{};
  uint32_t port = 0;
  uint32_t reserved = 0;
  std::array<char, 64> name{};
  std::array<std::array<char, 56>, 6> addresses{};
};

// Whether a rank has come, and why not.
struct Arrival {
  uint32_t has_come = 0;
  std::array<char, 252> why{};
};

template <size_t kRoom>
void put(std::string_view text, std::array<char, kRoom>& room) {
  text.copy(room.data(), kRoom - 1);
}
template <size_t kRoom>
std::string text_in(const std::array<char, kRoom>& room) {
  return {room.data(), strnlen(room.data(), kRoom)};
}

Invitation invite(const std::vector<RankPlace>& places, std::optional<ListeningSocket>& listener) {
  Invitation invitation;
  std::random_device device;
  invitation.run = uint64_t{device()} << 32 | device();
  invitation.secret = new_nonce();
  const bool one_host = std::ranges::all_of(places, [](const RankPlace& place) { return place.host == 0; });
  try {
    if (one_host) {
      const std::string name = fmt::format("@terrace-heartbeat-{}-{:x}", places[0].process, invitation.run);
      listener.emplace(RendezvousPlace{.socket = name});
      put(name, invitation.name);
    } else {
      listener.emplace(RendezvousPlace{});
      invitation.port = listener->port();
      const std::vector<std::string> addresses = own_addresses(places[0].host_name);
      for (size_t i = 0; i < std::min(addresses.size(), invitation.addresses.size()); ++i)
        put(addresses[i], invitation.addresses[i]);
    }
  } catch (const Error&) {
    // The invitation is empty.
  }
  return invitation;
}

std::vector<RendezvousPlace> places_in(const Invitation& invitation) {
  const std::string name = text_in(invitation.name);
  if (!name.empty()) return {{.socket = name}};
  std::vector<RendezvousPlace> places;
  for (const auto& address : invitation.addresses) {
    const std::string host = text_in(address);
    if (!host.empty()) places.push_back({.host = host, .port = static_cast<uint16_t>(invitation.port)});
  }
  return places;
}

}  // namespace

HeartbeatLinks meet_for_heartbeat(Communicator& ranks, const std::vector<RankPlace>& places) {
  const RankVotes votes(&ranks);
  std::optional<ListeningSocket> listener;
  Invitation invitation;
  if (ranks.rank() == 0) invitation = invite(places, listener);
  invitation = votes.of_first(invitation);
  const RunKey key{invitation.run, ranks.size(), RankChannel::heartbeat, RunSecret().with(invitation.secret)};
  HeartbeatLinks met{.links = std::vector<StreamSocket>(ranks.size()), .why_none = {}};
  Arrival mine;
  if (ranks.rank() != 0) {
    Reason reason = "rank 0 listens nowhere";
    met.links[0] = come_to(places_in(invitation), key, ranks.rank(), reason);
    mine.has_come = met.links[0].is_open() ? 1 : 0;
    put(reason.text, mine.why);
  } else if (listener) {
    auto guests = RankHandshake(*listener, key).take_in(1, Deadline(kToCome));
    for (uint32_t r = 1; r < ranks.size(); ++r) {
      if (guests[r]) met.links[r] = std::move(guests[r]->socket);
    }
  }
  const std::vector<Arrival> all = votes.of_all(mine);
  for (uint32_t r = 1; r < ranks.size(); ++r) {
    if (all[r].has_come == 0 && met.why_none.empty())
      met.why_none = fmt::format("rank {} cannot reach rank 0: {}", r, text_in(all[r].why));
  }
  if (!met.why_none.empty()) met.links.clear();
  for (const StreamSocket& link : met.links) miss_after_silence(link, kHostSilence);
  return met;
}

}  // namespace terrace
