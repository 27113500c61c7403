#include <terrace/runtime/train/checkpoint/commit_inventory.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/memory/tier/tier_verify.h>
#include <terrace/runtime/train/checkpoint/internal/saved_commit.h>
#include <terrace/runtime/train/checkpoint/state_set.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

TierManifest manifest_of(const fs::path& path) {
  return parse_tier_manifest(io::read_whole_file(path, kLargestManifestBytes), path);
}

SavedState look_at(const CommitFile& file) {
  SavedState state = saved_commit(file);
  try {
    add_contents(state, manifest_of(file.path));
  } catch (const Error& failure) {
    state.trouble = failure.parts().reason;
  }
  return state;
}

std::vector<TierPath> tier_paths_of(std::span<const fs::path> paths) {
  std::vector<TierPath> result;
  for (const fs::path& path : paths) result.push_back({path, 0});
  return result;
}

// The set of so many ranks in these paths, if it is there.
std::optional<StateSet> set_of(std::span<const fs::path> paths, uint32_t ranks) {
  for (StateSet& set : find_state_sets(paths)) {
    if (set.shards.size() == ranks) return std::move(set);
  }
  return std::nullopt;
}

// Of a running job, a commit goes when the next one is there.
bool is_replaced(std::span<const fs::path> paths, const SavedState& commit) {
  if (commit.ranks > 1) {
    const std::optional<StateSet> set = set_of(paths, commit.ranks);
    return !set || (set->newest() != nullptr && set->newest()->commit != commit.commit);
  }
  const FoundTier now = look_at_tier(paths);
  return std::none_of(now.commits.begin(), now.commits.end(),
                      [&](const CommitFile& file) { return file.commit == commit.commit; });
}

// The sets of several ranks in these paths that hold a commit.
std::vector<StateSet> sets_of_ranks(std::span<const fs::path> paths) {
  std::vector<StateSet> sets = find_state_sets(paths, 1);
  std::erase_if(sets, [](const StateSet& set) { return !set.contents.has_commits; });
  return sets;
}

// The newest commit of all ranks, or what the first of them shows of one that is not whole.
SavedState state_of(const StateSet& set) {
  SavedState state;
  if (const SavedState* const newest = set.newest()) {
    state = *newest;
    state.bytes = 0;
    for (const ShardPaths& paths : set.shards) {
      SavedState part;
      add_contents(part, look_at_tier(paths, newest->commit).newest);
      state.bytes += part.bytes;
    }
  } else {
    state.kind = SavedState::Kind::commit;
    state.path = set.shards.front().empty() ? fs::path() : set.shards.front().front();
    state.trouble = set.contents.trouble;
  }
  state.ranks = static_cast<uint32_t>(set.shards.size());
  return state;
}

// The manifests of a commit with the paths of each shard.
struct Shard {
  std::vector<fs::path> paths;
  fs::path manifest;
};
std::vector<Shard> shards_of(std::span<const fs::path> paths, const SavedState& commit) {
  if (commit.ranks == 1) return {{{paths.begin(), paths.end()}, commit.path}};
  std::vector<Shard> shards;
  const std::optional<StateSet> set = set_of(paths, commit.ranks);
  if (!set) return shards;
  for (const ShardPaths& own : set->shards) {
    const FoundTier found = look_at_tier(own, commit.commit);
    if (!found.commits.empty()) shards.push_back({own, found.commits.back().path});
  }
  return shards;
}

std::vector<fs::path> prune_commits_of_one_rank(std::span<const fs::path> paths,
                                                FunctionRef<bool(const SavedState&)> goes, Log& log) {
  const FoundTier found = look_at_tier(paths);
  if (!found.present) return {};
  const std::vector<CommitFile>& commits = found.commits;
  std::vector<fs::path> doomed;
  for (const CommitFile& file : commits) {
    if (goes(look_at(file))) doomed.push_back(file.path);
  }
  if (doomed.size() == commits.size()) {
    // A space that begins anew removes all of what was there, and at its end all of its own.
    TierSpaceOptions options;
    options.paths = tier_paths_of(paths);
    options.discard_commits = true;
    const TierSpace space(std::move(options), log);
    return doomed;
  }
  // A space does not open where its newest commit is damaged, and that may be the one to go: the locks do.
  std::vector<std::unique_ptr<TierFolder>> locked;
  for (const fs::path& path : paths) {
    locked.push_back(std::make_unique<TierFolder>(path.string(), log));
    locked.back()->keep_files(true);
  }
  for (const fs::path& manifest : doomed) {
    std::error_code error;
    if (!fs::remove(manifest, error)) {
      throw Error(ErrorKind::io, {"cannot remove the commit", manifest.string(), error.message(), ""});
    }
    io::sync_folder(manifest.parent_path());
  }
  return doomed;
}

}  // namespace

bool is_tier_path(const fs::path& path) {
  const fs::path one[] = {path};
  return look_at_tier(one).present || !find_state_sets(one).empty();
}

TierListing list_commits(std::span<const fs::path> paths) {
  const FoundTier found = look_at_tier(paths);
  TierListing listing;
  listing.in_use = found.in_use;
  if (found.path_count > paths.size())
    listing.absent_paths = found.path_count - static_cast<uint32_t>(paths.size());
  for (const CommitFile& file : found.commits) listing.states.push_back(look_at(file));
  if (!listing.states.empty()) {
    SavedState& newest = listing.states.back();
    newest.is_latest = found.whole;
    if (!found.whole && newest.trouble.empty()) newest.trouble = found.trouble;
  } else if (found.has_manifests) {
    listing.trouble = found.trouble;
  }
  for (const StateSet& set : sets_of_ranks(paths)) {
    listing.states.push_back(state_of(set));
    listing.in_use |= set.contents.in_use;
  }
  return listing;
}

uint64_t verify_commit(std::span<const fs::path> paths, const SavedState& commit,
                       FunctionRef<void(const BadBlock&)> bad, Log& log) {
  std::vector<BadBlock> found;
  uint64_t bytes = 0;
  const auto is_not_judged = [&] {
    if (!is_replaced(paths, commit)) return false;
    log.info(
        fmt::format("commit {} was replaced by a later one of its job while it was read: it is not judged",
                    commit.commit));
    return true;
  };
  try {
    if (!commit.trouble.empty())
      throw Error(ErrorKind::corrupt,
                  {"cannot verify the commit", commit.path.string(), commit.trouble, "see above"});
    for (const Shard& shard : shards_of(paths, commit)) {
      bytes += verify_tier_blocks(shard.paths, manifest_of(shard.manifest), [&](const BadTierBlock& block) {
        found.push_back({block.file,
                         fmt::format("{}, chunk {}, block {}", block.store, block.chunk, block.block),
                         block.offset, block.bytes, block.reason});
      });
    }
  } catch (const Error&) {  // it may have gone before anything of it was opened
    if (is_not_judged()) return bytes;
    throw;
  }
  if (!found.empty() && is_not_judged()) return bytes;
  for (const BadBlock& block : found) bad(block);
  return bytes;
}

std::vector<fs::path> prune_commits(std::span<const fs::path> paths,
                                    FunctionRef<bool(const SavedState&)> goes, Log& log) {
  std::vector<fs::path> removed;
  for (const StateSet& set : sets_of_ranks(paths)) {
    const SavedState state = state_of(set);
    if (!goes(state)) continue;
    HeldSet(set, log).remove();
    removed.push_back(state.path);
  }
  const std::vector<fs::path> more = prune_commits_of_one_rank(paths, goes, log);
  removed.insert(removed.end(), more.begin(), more.end());
  return removed;
}

}  // namespace terrace
