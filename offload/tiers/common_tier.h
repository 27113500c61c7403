// CommonTier: what the tiers of all ranks hold in common. Each rank has a shard of a state in folders of its
// own; a commit is a whole state where all shards have it. Nothing here locks or changes anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

struct CommonTier {
  uint64_t commit = 0;       // the newest commit that is whole on all ranks; 0: there is none
  bool is_retained = false;  // `commit` is, on some rank at least
  bool has_commits = false;  // a state is there, whole or not
  bool has_remains = false;  // only parts of a first commit that never was whole: nothing is lost with them
  bool is_single = false;    // no rank has another commit than `commit`, and it is not retained
  bool in_use = false;       // another job has folders of some rank
  // The numbers of the commits that are whole on all ranks, the oldest first. With a `trouble` a later one is
  // damaged.
  std::vector<uint64_t> whole;
  uint64_t least_number = 1;  // of the next commit: no rank has, or had, one with this number
  std::string trouble;        // why there is none, in words, though has_commits
};

// The paths of one shard.
using ShardPaths = std::vector<std::filesystem::path>;

// `paths` are those of this rank's shard. Every rank calls it, while no operation of the control lane is
// under way, and all get the same. Throws Error(peer) where a rank has left, and Error(io).
CommonTier common_tier(std::span<const std::filesystem::path> paths, Communicator& ranks);
// The same for shards that this process sees by itself, each by its number.
CommonTier common_tier(std::span<const ShardPaths> shards);

}  // namespace terrace
