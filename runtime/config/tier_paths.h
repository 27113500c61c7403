// The nvme folders of a run, as its configuration names them, and those of a rank in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Returns every path on which the configuration places something, each once, those of the states first. One
// folder may be given by two names.
std::vector<std::filesystem::path> tier_paths(const PlacementConfig& placement);
// The folders in them that this rank uses; the paths themselves where there is one rank.
std::vector<std::filesystem::path> own_tier_paths(const PlacementConfig& placement);

// Which of how many ranks a tier is of.
struct TierOfRank {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool operator==(const TierOfRank&) const = default;
};
// "terrace-rank-2-of-4"; empty where there is one rank. Tiers of different numbers of ranks lie side by side.
std::string tier_name_of(const TierOfRank& rank);
// Nothing where the name is no such name, or that of one rank.
std::optional<TierOfRank> parse_tier_name(std::string_view name);

}  // namespace terrace
