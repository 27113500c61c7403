// CommitCopies: where checkpoints are copied from while training goes on: the last commit on nvme. Of several
// ranks the first one copies the commit of all, where it sees the folders of each of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/offload/tiers/common_tier.h>
#include <terrace/offload/watch/watched_votes.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/state_source.h>

namespace terrace {

class CommitCopies {
 public:
  // `own` are the tier's paths of this rank. Every rank makes one; `offloader` and its `space` outlive it.
  CommitCopies(Offloader& offloader, const FlatSpace& space, std::span<const std::filesystem::path> own,
               const WatchedVotes& ranks);

  // The same on all ranks. False: no commits are kept, or there is a rank whose folders the first one does
  // not see, because they are on another host.
  bool are_possible() const { return are_possible_; }

  struct Copied {
    CheckpointInfo info;
    std::unique_ptr<StateSource> source;
  };
  // The last commit, which is durable; the first rank asks. It stays while the source lives, because the
  // caller begins no commit meanwhile, and without the first rank no other one becomes that of all. Throws
  // Error(corrupt) where a shard of it is not there.
  Copied last() const;

 private:
  Offloader& offloader_;
  const FlatSpace& space_;
  std::vector<ShardPaths> shards_;  // of all ranks, on the first of several
  bool are_possible_ = false;
};

}  // namespace terrace
