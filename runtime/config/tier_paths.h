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

// Where a rank is among those of its run.
struct RankSeat {
  uint32_t rank = 0;
  uint32_t local_rank = 0;  // among the ranks of its host
  uint32_t ranks_on_host = 1;
  std::string host = {};
};
// Leaves to the rank the paths that it uses: of a list all, or its own ones (terrace.nvme_share), with its
// numbers and its host in the place of {rank}, {local_rank} and {host}. The others, as far as they are there,
// are other_paths then. Throws Error(config) where a host has fewer paths than ranks that want their own.
void take_paths_of(const RankSeat& seat, NvmeShare share, PlacementConfig& placement);
// The paths in which states of any ranks may lie: those of this rank first.
std::vector<std::filesystem::path> paths_of_all_ranks(const PlacementConfig& placement);

// Where so many ranks have their tiers in the paths. There are two such places: a run whose records have
// another layout than those of a commit begins in the other one and reads the commit.
struct TierPlace {
  uint32_t ranks = 1;
  bool is_second = false;
  auto operator<=>(const TierPlace&) const = default;
};

// Which of how many ranks a tier is of.
struct TierOfRank {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool is_second = false;  // TierPlace
  bool operator==(const TierOfRank&) const = default;
  TierPlace place() const { return {ranks, is_second}; }
};
// "terrace-rank-2-of-4", or "terrace-second-rank-2-of-4"; empty where there is one rank in the first place.
// Tiers of different places lie side by side. Where several stores share the paths their name stands before
// it: "model-terrace-rank-2-of-4", and "model".
std::string tier_name_of(const TierOfRank& rank, std::string_view store = {});
// Nothing where the name is no such name of that store, or that of one rank.
std::optional<TierOfRank> parse_tier_name(std::string_view name, std::string_view store = {});

}  // namespace terrace
