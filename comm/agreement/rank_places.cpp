#include <terrace/comm/agreement/rank_places.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/connections/rank_handshake.h>

namespace terrace {
namespace {

struct Introduction {
  uint64_t machine = 0;
  uint64_t process = 0;
  std::array<char, 64> host_name{};  // up to a 0
};

}  // namespace

OwnPlace own_place() {
  OwnPlace place;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) place.host_name = name.data();
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  place.machine = run_number(boot);
  place.process = static_cast<uint64_t>(getpid());
  return place;
}

std::vector<RankPlace> introduce_ranks(Communicator& ranks, const OwnPlace& mine) {
  Introduction own{.machine = mine.machine, .process = mine.process};
  mine.host_name.copy(own.host_name.data(), own.host_name.size() - 1);
  std::vector<RankPlace> places;
  std::map<std::pair<std::string, uint64_t>, std::pair<uint32_t, uint32_t>>
      hosts;  // their number, and ranks so far
  for (const Introduction& one : RankVotes(&ranks).of_all(own)) {
    const std::string name(one.host_name.data(), strnlen(one.host_name.data(), one.host_name.size()));
    const auto number = static_cast<uint32_t>(hosts.size());
    const auto host = hosts.try_emplace({name, one.machine}, number, 0).first;
    const auto rank = static_cast<uint32_t>(places.size());
    places.push_back({rank, host->second.first, host->second.second++, name, one.process});
  }
  return places;
}

std::optional<HostLayout> layout_of(std::span<const RankPlace> places) {
  const auto ranks = static_cast<uint32_t>(places.size());
  const HostLayout layout{ranks, places.back().host + 1};
  if (layout.hosts > ranks || ranks % layout.hosts != 0) return std::nullopt;
  for (const RankPlace& place : places) {
    if (place.host != layout.host_of(place.rank) || place.local_rank != layout.place_on_host(place.rank))
      return std::nullopt;
  }
  return layout;
}

std::string text_of(const RankPlace& place, size_t ranks) {
  return fmt::format("rank {} of {} (host {}, process {})", place.rank, ranks, place.host_name,
                     place.process);
}

std::string text_of_ranks(std::span<const uint32_t> ranks) {
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

}  // namespace terrace
