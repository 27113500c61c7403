#include <terrace/runtime/config/tier_paths.h>

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <system_error>

namespace terrace {

namespace fs = std::filesystem;

std::vector<fs::path> tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths;
  const auto add = [&](Placement role, const std::vector<fs::path>& more) {
    for (const fs::path& path : more) {
      std::error_code error;
      const auto same = [&](const fs::path& known) {
        return known == path || fs::equivalent(known, path, error);
      };
      if (role == Placement::nvme && std::none_of(paths.begin(), paths.end(), same)) paths.push_back(path);
    }
  };
  add(placement.states, placement.state_paths);
  add(placement.parameters, placement.parameter_paths);
  return paths;
}

std::vector<fs::path> own_tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths = tier_paths(placement);
  if (placement.tier_name.empty()) return paths;
  for (fs::path& path : paths) path /= placement.tier_name;
  return paths;
}

std::string tier_name_of(const TierOfRank& rank) {
  return rank.ranks == 1 ? "" : fmt::format("terrace-rank-{}-of-{}", rank.rank, rank.ranks);
}

std::optional<TierOfRank> parse_tier_name(std::string_view name) {
  TierOfRank rank;
  const std::string text(name);
  char behind = 0;
  if (std::sscanf(text.c_str(), "terrace-rank-%9" SCNu32 "-of-%9" SCNu32 "%c", &rank.rank, &rank.ranks,
                  &behind) != 2)
    return std::nullopt;
  // No other spelling of the numbers is one of ours.
  if (rank.ranks < 2 || rank.rank >= rank.ranks || tier_name_of(rank) != name) return std::nullopt;
  return rank;
}

}  // namespace terrace
