#include <terrace/runtime/checkpoint/commit_inventory.h>

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
#include <terrace/runtime/checkpoint/internal/saved_commit.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/config/tier_paths.h>

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
    state.may_be_whole = is_drive_failure(failure.parts().error_number);
    if (is_system_refusal(failure) && !state.may_be_whole) throw;
    state.trouble = failure.parts().reason;
  }
  return state;
}

std::vector<TierPath> tier_paths_of(std::span<const fs::path> paths) {
  std::vector<TierPath> result;
  for (const fs::path& path : paths) result.push_back({path, 0});
  return result;
}

// The commit lies in folders of its ranks, and not in the paths themselves.
bool is_in_set(const SavedState& commit) {
  return TierPlace{commit.ranks, commit.is_second} != TierPlace{};
}

// The set that the commit is of, if it is there.
std::optional<StateSet> set_of(std::span<const fs::path> paths, const SavedState& commit) {
  for (StateSet& set : find_state_sets(paths)) {
    if (set.place() == TierPlace{commit.ranks, commit.is_second}) return std::move(set);
  }
  return std::nullopt;
}

// Of a running job, a commit goes when the next one is there.
bool is_replaced(std::span<const fs::path> paths, const SavedState& commit) {
  if (is_in_set(commit)) {
    const std::optional<StateSet> set = set_of(paths, commit);
    return !set || (set->newest() != nullptr && !std::ranges::count(set->contents.whole, commit.commit));
  }
  const FoundTier now = look_at_tier(paths);
  return std::none_of(now.commits.begin(), now.commits.end(),
                      [&](const CommitFile& file) { return file.commit == commit.commit; });
}

// The sets in these paths, but that of one rank in its first place, that hold a commit.
std::vector<StateSet> sets_of_ranks(std::span<const fs::path> paths) {
  std::vector<StateSet> sets = find_state_sets(paths, TierPlace{});
  std::erase_if(sets, [](const StateSet& set) { return !set.contents.has_commits; });
  return sets;
}

// What the shards show of commit `number`: bytes of those that can be read, and the rest of the first of
// these.
SavedState state_of(const StateSet& set, uint64_t number) {
  SavedState state;
  for (const ShardPaths& paths : set.shards) {
    const FoundTier found = look_at_tier(paths, number);
    for (const CommitFile& file : found.manifests) {
      if (state.path.empty() && file.commit == number) state.path = file.path;
    }
    if (found.commits.empty() || found.commit != number) continue;
    SavedState part = saved_commit(found.commits.back());
    try {
      add_contents(part, found.newest);
    } catch (const Error&) {
      continue;  // the state's trouble says it
    }
    part.bytes += state.bytes;
    const bool is_retained = part.kind == SavedState::Kind::retained_commit;
    if (state.commit == 0) {
      state = std::move(part);
    } else {
      state.bytes = part.bytes;
      if (is_retained) state.kind = SavedState::Kind::retained_commit;
    }
  }
  if (state.commit == 0) state.kind = SavedState::Kind::commit;
  state.ranks = static_cast<uint32_t>(set.shards.size());
  state.is_second = set.is_second;
  return state;
}

// The folders of a rank in these paths that hold nothing, or are not there.
std::string missing_folders(std::span<const fs::path> paths, const TierOfRank& shard) {
  std::string names;
  for (const fs::path& path : paths) {
    const fs::path own[] = {path / tier_name_of(shard)};
    if (!look_at_tier(own).present) names += (names.empty() ? "" : ", ") + own[0].string();
  }
  return names;
}

// The newest commit of a set that is not whole: as much as the shards that are there show of it.
SavedState damaged_state(std::span<const fs::path> paths, const StateSet& set) {
  std::vector<FoundTier> shards;
  uint64_t newest = 0;
  for (const ShardPaths& own : set.shards) {
    shards.push_back(look_at_tier(own));
    for (const CommitFile& file : shards.back().manifests) newest = std::max(newest, file.commit);
  }
  const bool is_whole =
      std::ranges::count(set.contents.whole, newest) > 0;  // nothing is left of the later one
  SavedState state = state_of(set, is_whole ? 0 : newest);
  std::string missing;
  uint32_t there = 0;
  for (uint32_t r = 0; r < state.ranks; ++r) {
    const FoundTier& found = shards[r];
    if (state.path.empty() && !set.shards[r].empty()) state.path = set.shards[r].front();
    if (found.present && found.path_count <= set.shards[r].size()) {
      ++there;
      continue;
    }
    const std::string folders = missing_folders(paths, {r, state.ranks, state.is_second});
    missing += (missing.empty() ? "" : ", ") +
               (folders.empty() ? fmt::format("another nvme path of rank {}", r) : folders);
  }
  state.is_incomplete = !missing.empty();
  state.trouble = set.contents.trouble;
  if (state.is_incomplete)
    state.trouble = fmt::format(
        "{} of {} ranks have their part of it, and it can be gone on from only with all: "
        "there is no {}",
        there, state.ranks, missing);
  return state;
}

// The states of a set, the oldest first. Of passing ones only the last one is more than a remainder.
std::vector<SavedState> states_of(std::span<const fs::path> paths, const StateSet& set) {
  std::vector<SavedState> states;
  const std::vector<uint64_t>& whole = set.contents.whole;
  for (const uint64_t number : whole) {
    SavedState state = state_of(set, number);
    state.is_latest = set.newest() != nullptr && set.newest()->commit == number;
    if (state.kind == SavedState::Kind::retained_commit || number == whole.back())
      states.push_back(std::move(state));
  }
  if (!set.contents.trouble.empty()) states.push_back(damaged_state(paths, set));
  return states;
}

// Returns the manifests of those that were removed.
std::vector<fs::path> prune_set(std::span<const fs::path> paths, const StateSet& set,
                                FunctionRef<bool(const SavedState&)> goes, Log& log) {
  const std::vector<SavedState> states = states_of(paths, set);
  std::vector<fs::path> doomed;
  std::vector<uint64_t> staying;
  for (const SavedState& state : states) {
    if (goes(state)) {
      doomed.push_back(state.path);
    } else {
      staying.push_back(state.trouble.empty() ? state.commit : UINT64_MAX);
    }
  }
  if (doomed.empty()) return doomed;
  HeldSet held(set, log);
  if (staying.empty()) {
    held.remove();
    return doomed;
  }
  // What is later than the last whole one is the damaged one, whatever its number is on which rank.
  const uint64_t last = set.contents.whole.empty() ? 0 : set.contents.whole.back();
  held.remove_commits([&](uint64_t number) {
    return !std::ranges::count(staying, number > last && !set.contents.trouble.empty() ? UINT64_MAX : number);
  });
  return doomed;
}

// The manifests of a commit with the paths of each shard.
struct Shard {
  std::vector<fs::path> paths;
  fs::path manifest;
};
std::vector<Shard> shards_of(std::span<const fs::path> paths, const SavedState& commit) {
  if (!is_in_set(commit)) return {{{paths.begin(), paths.end()}, commit.path}};
  std::vector<Shard> shards;
  const std::optional<StateSet> set = set_of(paths, commit);
  if (!set) return shards;
  for (const ShardPaths& own : set->shards) {
    const FoundTier found = look_at_tier(own, commit.commit);
    if (found.commit == commit.commit) shards.push_back({own, found.commits.back().path});
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

void require_whole_set(const fs::path& path) {
  const fs::path one[] = {path};
  const FoundTier found = look_at_tier(one);
  if (!found.present) return;
  const auto name = parse_tier_name((path / "").lexically_normal().parent_path().filename().string());
  TierOfRank share = name.value_or(TierOfRank{});
  if (!found.commits.empty()) share = {found.newest.shard.number, found.newest.shard.count};
  if (share.ranks <= 1) return;
  const std::string above = (path / "..").lexically_normal().string();
  throw Error(ErrorKind::config,
              {"there is no whole saved state in", path.string(),
               fmt::format("it is what rank {} of {} has of one", share.rank, share.ranks),
               name ? fmt::format("name the path that holds the folders of all ranks: {}", above)
                    : fmt::format("put the folders of all ranks into one path, this one as {}, and name that",
                                  tier_name_of(share))});
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
    const std::vector<SavedState> states = states_of(paths, set);
    listing.states.insert(listing.states.end(), states.begin(), states.end());
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
    const std::vector<fs::path> gone = prune_set(paths, set, goes, log);
    removed.insert(removed.end(), gone.begin(), gone.end());
  }
  const std::vector<fs::path> more = prune_commits_of_one_rank(paths, goes, log);
  removed.insert(removed.end(), more.begin(), more.end());
  return removed;
}

}  // namespace terrace
