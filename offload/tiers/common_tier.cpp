#include <terrace/offload/tiers/common_tier.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/tier/tier_space.h>

namespace terrace {
namespace {

using Words = std::array<char, 400>;  // of a message, up to its first zero

Words words_of(const std::string& text) {
  Words words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), words.size() - 1));
  return words;
}

// A commit of one shard.
struct ShownCommit {
  uint64_t number;
  uint64_t agreed;
  uint64_t state;  // equal on all shards of one state
  uint32_t shard, shards;
  bool retained;
};

struct ShownTier {
  SpaceId id;
  bool has_id, has_manifests, in_use;
  uint64_t greatest;  // number of a commit, damaged ones too
  uint64_t count;     // of its commits, without damaged ones
  Words trouble;
};

// What one rank's folders show.
struct OwnTier {
  ShownTier shown{};
  std::vector<ShownCommit> commits;  // the oldest first
};

uint64_t hash_of_state(const TierManifest& commit) {
  const uint64_t parts[] = {checksum_of(std::as_bytes(std::span(commit.info))),
                            checksum_of(std::as_bytes(std::span(commit.tensor_steps))),
                            checksum_of(commit.space.bytes)};
  return checksum_of(std::as_bytes(std::span(parts)));
}

OwnTier look(std::span<const std::filesystem::path> paths) {
  const FoundTier found = look_at_tier(paths);
  OwnTier own;
  own.shown.has_id = found.id.has_value();
  if (found.id) own.shown.id = *found.id;
  own.shown.has_manifests = found.has_manifests;
  own.shown.in_use = found.in_use;
  own.shown.greatest = found.greatest;
  own.shown.trouble = words_of(found.trouble);
  for (const std::vector<CommitFile>* files : {&found.passed, &found.commits}) {
    for (const CommitFile& file : *files) {
      try {
        const TierManifest commit =
            parse_tier_manifest(io::read_whole_file(file.path, kLargestManifestBytes), file.path);
        own.commits.push_back({file.commit, commit.shard.agreed, hash_of_state(commit), commit.shard.number,
                               commit.shard.count, file.retained});
      } catch (const Error& error) {
        // A newer Terrace wrote it, or it may be whole.
        if (error.kind() == ErrorKind::config || is_system_refusal(error)) throw;
      }
    }
  }
  std::ranges::sort(own.commits, {}, &ShownCommit::number);
  own.shown.count = own.commits.size();
  return own;
}

// The shards side by side, as every rank sees them.
struct AllTiers {
  std::vector<ShownTier> tiers;                   // by rank
  std::vector<std::vector<ShownCommit>> commits;  // by rank

  const ShownCommit* find(uint32_t rank, uint64_t number) const {
    const auto found = std::ranges::find(commits[rank], number, &ShownCommit::number);
    return found != commits[rank].end() ? &*found : nullptr;
  }
  // Why the commit of this number is no state of all ranks; empty if it is one.
  std::string why_not_common(uint64_t number) const;
  // Why an earlier commit must not be taken for the newest: a later one was whole, and a part of it is
  // damaged.
  std::string why_not_newest(uint64_t number) const;
  // Why no commit is common where the first rank has none.
  std::string trouble_of_shards() const;
  bool is_retained(uint64_t number) const;
  // True if every commit that is there was the first of its run, and no rank knew that all have it.
  bool are_remains() const;
};

AllTiers show_all(const OwnTier& own, const RankVotes& ranks) {
  AllTiers all;
  all.tiers = ranks.of_all(own.shown);
  const auto longest = std::ranges::max_element(all.tiers, {}, &ShownTier::count);
  std::vector<ShownCommit> mine = own.commits;
  mine.resize(longest->count);
  const std::vector<ShownCommit> commits =
      mine.empty() ? std::vector<ShownCommit>{} : ranks.of_all(std::span<const ShownCommit>(mine));
  for (uint32_t r = 0; r < ranks.count(); ++r) {
    const auto first = commits.begin() + static_cast<std::ptrdiff_t>(r * longest->count);
    all.commits.emplace_back(first, first + static_cast<std::ptrdiff_t>(all.tiers[r].count));
  }
  return all;
}

std::string AllTiers::why_not_common(uint64_t number) const {
  for (uint32_t r = 0; r < tiers.size(); ++r) {
    const ShownCommit* const commit = find(r, number);
    if (commit == nullptr) {
      const std::string why = tiers[r].trouble.data();
      return fmt::format("rank {} has no part of commit {}{}", r, number, why.empty() ? "" : ": " + why);
    }
    if (commit->shard != r || commit->shards != tiers.size())
      return fmt::format("what rank {} has is shard {} of {}", r, commit->shard, commit->shards);
    if (commit->state != find(0, number)->state)
      return fmt::format("commit {} of rank {} is of another state than that of rank 0", number, r);
  }
  return "";
}

std::string AllTiers::why_not_newest(uint64_t number) const {
  for (uint32_t r = 0; r < tiers.size(); ++r) {
    const uint64_t readable = commits[r].back().number;
    if (tiers[r].greatest > std::max(number, readable))
      return fmt::format("rank {}: {}", r, tiers[r].trouble.data());
    if (commits[r].back().agreed > number)
      return fmt::format("all ranks had commit {}, and rank {} is not the one that has lost it",
                         commits[r].back().agreed, r);
  }
  return "";
}

std::string AllTiers::trouble_of_shards() const {
  for (uint32_t r = 0; r < tiers.size(); ++r) {
    if (!commits[r].empty()) continue;
    const std::string why = tiers[r].trouble.data();
    return fmt::format("rank {} has no part of the state that others have{}", r,
                       why.empty() ? "" : ": " + why);
  }
  return "";
}

bool AllTiers::is_retained(uint64_t number) const {
  for (uint32_t r = 0; r < tiers.size(); ++r) {
    if (find(r, number)->retained) return true;
  }
  return false;
}

bool AllTiers::are_remains() const {
  for (uint32_t r = 0; r < tiers.size(); ++r) {
    if (!tiers[r].has_id || tiers[r].id != tiers[0].id) return false;
    if (tiers[r].has_manifests && commits[r].empty()) return false;  // all are damaged
    if (!std::ranges::all_of(commits[r], [](const ShownCommit& c) { return c.agreed == 0; })) return false;
  }
  return true;
}

// Why the blocks of the commit are not all there; empty if they are.
std::string why_not_whole(std::span<const std::filesystem::path> paths, uint64_t commit) {
  const FoundTier found = look_at_tier(paths, commit);
  return found.whole && found.commit == commit ? "" : found.trouble;
}

// `whole` says of a commit why it is not whole on all ranks.
CommonTier common_of(const AllTiers& all, FunctionRef<std::string(uint64_t)> whole) {
  CommonTier common;
  for (const ShownTier& tier : all.tiers) {
    common.has_commits |= tier.has_manifests;
    common.in_use |= tier.in_use;
    common.least_number = std::max(common.least_number, tier.greatest + 1);
  }
  std::string first_reason;
  for (const ShownCommit& shown : all.commits.front()) {  // of the newest in the end
    first_reason = all.why_not_common(shown.number);
    if (!first_reason.empty()) continue;
    common.commit = shown.number;
    common.is_retained = all.is_retained(shown.number);
    common.whole.push_back(shown.number);
  }
  if (common.commit > 0) {
    common.trouble = all.why_not_newest(common.commit);
    if (common.trouble.empty()) {
      common.trouble = whole(common.commit);
      if (!common.trouble.empty()) common.whole.pop_back();
    }
    if (!common.trouble.empty()) common.commit = 0;
    common.is_single = std::ranges::all_of(all.commits, [](const std::vector<ShownCommit>& commits) {
      return commits.size() == 1 && !commits.front().retained;
    });
    return common;
  }
  common.has_remains = common.has_commits && all.are_remains();
  common.has_commits = common.has_commits && !common.has_remains;
  if (common.has_commits) common.trouble = first_reason.empty() ? all.trouble_of_shards() : first_reason;
  return common;
}

}  // namespace

CommonTier common_tier(std::span<const std::filesystem::path> paths, Communicator& communicator) {
  const RankVotes ranks(&communicator);
  return common_of(show_all(look(paths), ranks), [&](uint64_t commit) -> std::string {
    const std::vector<Words> all = ranks.of_all(words_of(why_not_whole(paths, commit)));
    for (uint32_t r = 0; r < all.size(); ++r) {
      if (all[r][0] != '\0') return fmt::format("rank {}: {}", r, all[r].data());
    }
    return "";
  });
}

CommonTier common_tier(std::span<const ShardPaths> shards) {
  AllTiers all;
  for (const ShardPaths& paths : shards) {
    OwnTier tier = look(paths);
    all.tiers.push_back(tier.shown);
    all.commits.push_back(std::move(tier.commits));
  }
  return common_of(all, [&](uint64_t commit) -> std::string {
    for (const ShardPaths& paths : shards) {
      if (std::string trouble = why_not_whole(paths, commit); !trouble.empty()) return trouble;
    }
    return "";
  });
}

}  // namespace terrace
