#include <terrace/capi/found_commits.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/capi/commit_text.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/store_of_ranks.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/options/tier_name.h>
#include <terrace/offload/tiers/common_tier.h>

namespace terrace::c {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnreadable = std::numeric_limits<uint64_t>::max();

// What a number of ranks has left, as one rank sees it.
struct ShownState {
  uint32_t ranks = 0;  // 0: nothing
  bool has_commits = false, in_use = false, is_early = false;
  uint64_t commit = 0;  // 0: none is whole
  uint64_t number = 0;  // CommitText::number of the newest; kUnreadable where nobody can know
  std::array<char, 240> trouble{};
};

struct Found {
  std::vector<fs::path> paths;   // of all ranks
  std::vector<StateSet> others;  // as this process sees them
  ShownState own;
  std::vector<std::vector<ShownState>> shown;  // `others` by rank
};

void say_trouble(ShownState& shown, const std::string& trouble) {
  std::copy_n(trouble.begin(), std::min(trouble.size(), shown.trouble.size() - 1), shown.trouble.begin());
}

// Adds what the newest manifest of a shard says, or that of `commit`.
void add_newest(ShownState& shown, const ShardPaths& shard, uint64_t commit) {
  const FoundTier tier = look_at_tier(shard, commit);
  if (!tier.has_manifests) return;
  const bool is_read = !tier.commits.empty() || !tier.passed.empty();
  const CommitText text = read_commit_text(tier.newest.info);
  shown.number = std::max(shown.number, is_read ? text.number : kUnreadable);
  shown.is_early = shown.is_early || (is_read && text.tensors == 0);
}

ShownState shown_of(const StateSet& set) {
  ShownState shown{.ranks = static_cast<uint32_t>(set.shards.size()),
                   .has_commits = set.contents.has_commits,
                   .in_use = set.contents.in_use,
                   .commit = set.contents.commit};
  for (const ShardPaths& shard : set.shards) {
    if (shown.has_commits && !shard.empty()) add_newest(shown, shard, shown.commit);
  }
  say_trouble(shown, set.contents.trouble);
  return shown;
}

ShownState own_state(const Request& request, const std::vector<fs::path>& folders) {
  ShownState own{.ranks = request.options.ranks};
  if (own.ranks > 1) {
    const CommonTier common = common_tier(folders, *request.options.hooks.communicator);
    own.has_commits = common.has_commits;
    own.commit = common.commit;
  } else {
    const FoundTier tier = look_at_tier(folders);
    own.has_commits = tier.has_manifests;
    own.commit = tier.whole ? tier.commit : 0;
  }
  if (own.has_commits) add_newest(own, folders, own.commit);
  const RankVotes votes(request.options.hooks.communicator);
  own.number = std::ranges::max(votes.of_all(own.number));
  return own;
}

// What each rank says, however long it is.
template <typename Word>
std::vector<std::vector<Word>> lists_of_all(const RankVotes& votes, std::vector<Word> mine) {
  const std::vector<uint64_t> counts = votes.of_all(uint64_t{mine.size()});
  const uint64_t longest = std::ranges::max(counts);
  mine.resize(longest);
  std::vector<std::vector<Word>> lists(counts.size());
  if (longest == 0) return lists;
  const std::vector<Word> all = votes.of_all(std::span<const Word>(mine));
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * longest);
    lists[r].assign(first, first + static_cast<std::ptrdiff_t>(counts[r]));
  }
  return lists;
}

std::vector<fs::path> paths_of_all(const RankVotes& votes, const OffloadOptions& options) {
  OffloadOptions without_name = options;
  without_name.tier_name.clear();
  std::vector<char> mine;
  for (const fs::path& path : tier_folders(without_name)) {
    const std::string text = path.string();
    mine.insert(mine.end(), text.c_str(), text.c_str() + text.size() + 1);
  }
  std::vector<fs::path> paths;
  for (const std::vector<char>& one : lists_of_all(votes, mine)) {
    for (const char* at = one.data(); at != one.data() + one.size(); at += std::string_view(at).size() + 1) {
      if (std::ranges::find(paths, fs::path(at)) == paths.end()) paths.emplace_back(at);
    }
  }
  return paths;
}

bool is_on_nvme(const OffloadOptions& options) {
  return options.states == Placement::nvme || options.parameters == Placement::nvme;
}

// Runs what asks the others. Where it fails on this rank alone the others do not wait for it.
template <typename Act>
auto asked(const Request& request, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    if (request.ranks != nullptr && error.kind() != ErrorKind::peer) request.ranks->leave(error.in(Door::c));
    throw;
  }
}

Found find(const Request& request) {
  const RankVotes votes(request.options.hooks.communicator);
  const std::vector<fs::path> folders = tier_folders(request.options);
  return asked(request, [&] {
    Found found;
    found.paths = paths_of_all(votes, request.options);
    found.own = own_state(request, folders);
    found.others = find_state_sets(found.paths, request.options.ranks, request.tier_name);
    std::vector<ShownState> mine;
    for (const StateSet& set : found.others) mine.push_back(shown_of(set));
    found.shown = lists_of_all(votes, std::move(mine));
    return found;
  });
}

// What all ranks see of what another number of them has left.
struct OtherState {
  bool has_commits = false, in_use = false;
  uint64_t number = 0;
  std::string trouble;  // why it cannot be gone on from; empty: it can
};

std::string trouble_on(const ShownState* shown, const ShownState& first) {
  if (shown == nullptr || !shown->has_commits) return "none of its folders is there";
  if (shown->commit == 0) return shown->trouble.data();
  if (shown->commit != first.commit) return "it has another commit there";
  if (shown->is_early) return "an earlier Terrace made it, which only as many ranks go on from";
  return "";
}

std::map<uint32_t, OtherState> others_of(const Found& found) {
  std::map<uint32_t, OtherState> others;
  std::map<uint32_t, const ShownState*> first;
  for (const std::vector<ShownState>& of_rank : found.shown) {
    for (const ShownState& shown : of_rank) {
      OtherState& other = others[shown.ranks];
      other.has_commits = other.has_commits || shown.has_commits;
      other.in_use = other.in_use || shown.in_use;
      other.number = std::max(other.number, shown.number);
      if (shown.has_commits) first.try_emplace(shown.ranks, &shown);
    }
  }
  for (auto& [ranks, other] : others) {
    for (size_t r = 0; r < found.shown.size() && other.has_commits && other.trouble.empty(); ++r) {
      const auto shown = std::ranges::find(found.shown[r], ranks, &ShownState::ranks);
      other.trouble = trouble_on(shown != found.shown[r].end() ? &*shown : nullptr, *first.at(ranks));
      if (!other.trouble.empty() && found.shown.size() > 1)
        other.trouble = fmt::format("on rank {}: {}", r, other.trouble);
    }
  }
  return others;
}

[[noreturn]] void refuse_use(const Found& found, uint32_t ranks) {
  refuse(ErrorKind::io, "cannot use the nvme path", text_of_paths(found.paths),
         fmt::format("a job of {} is using it", text_of_rank_count(ranks)),
         "wait for its end, or name another path");
}

[[noreturn]] void refuse_loss(const Found& found, uint32_t ranks) {
  refuse(ErrorKind::config, "the nvme paths hold the state of an earlier run", text_of_paths(found.paths),
         fmt::format("{} committed it", ranks == 1 ? "one rank" : text_of_rank_count(ranks)),
         "give " + Option::resume + " to go on from it, " + Option::discard_commits +
             " to give it up, or another path");
}

[[noreturn]] void refuse_unseen(const Found& found, uint32_t ranks, const OtherState& other) {
  refuse(ErrorKind::config, fmt::format("cannot go on from what {} committed", text_of_rank_count(ranks)),
         text_of_paths(found.paths), other.trouble,
         "see that every rank sees the folders of all, and that they are whole; or load a checkpoint, with " +
             Option::discard_commits);
}

// The number of ranks whose commit is the furthest; none: as many as there are here, if any.
std::optional<uint32_t> furthest(const Found& found, const std::map<uint32_t, OtherState>& others) {
  std::optional<uint32_t> best;
  bool is_whole = found.own.commit > 0;
  uint64_t number = is_whole ? found.own.number : 0;
  for (const auto& [ranks, other] : others) {
    if (!other.has_commits || !other.trouble.empty() || (is_whole && other.number <= number)) continue;
    best = ranks, number = other.number, is_whole = true;
  }
  // What is further, and not whole here, must not be passed over.
  for (const auto& [ranks, other] : others) {
    if (other.has_commits && !other.trouble.empty() && (!is_whole || other.number > number))
      refuse_unseen(found, ranks, other);
  }
  const bool own_is_damaged = found.own.has_commits && found.own.commit == 0;
  if (own_is_damaged && found.own.number > number) return std::nullopt;  // the store says what is wrong
  return best;
}

}  // namespace

bool has_commit(const Request& request) {
  if (!is_on_nvme(request.options)) return false;
  const Found found = find(request);
  const auto others = others_of(found);
  return found.own.has_commits ||
         std::ranges::any_of(others, [](const auto& other) { return other.second.has_commits; });
}

void settle_start(Request& request) {
  OffloadOptions& options = request.options;
  if (!is_on_nvme(options)) return;
  Found found = find(request);
  const std::map<uint32_t, OtherState> others = others_of(found);
  const bool resumes = options.tier_start == TierStart::resume, discards = options.discard_commits;
  uint64_t greatest = found.own.number == kUnreadable ? 0 : found.own.number;
  for (const auto& [ranks, other] : others) {
    if (other.in_use && (options.durable || other.has_commits)) refuse_use(found, ranks);
    if (other.has_commits && !resumes && !discards) refuse_loss(found, ranks);
    if (other.number != kUnreadable) greatest = std::max(greatest, other.number);
  }
  request.commit_number = greatest + 1;
  if (resumes) {
    if (const std::optional<uint32_t> best = furthest(found, others)) {
      request.set = *std::ranges::find_if(found.others,
                                          [&](const StateSet& set) { return set.shards.size() == *best; });
      options.tier_start = TierStart::fresh;
      options.discard_commits = options.discard_commits || found.own.has_commits;
    }
  }
  if (options.rank != 0) return;
  // What an earlier Terrace made may be of another run. A store without commits of its own takes the place of
  // none, and may run beside another job.
  std::erase_if(found.others, [&](const StateSet& set) {
    const OtherState& other = others.at(static_cast<uint32_t>(set.shards.size()));
    if (options.durable) return resumes && other.has_commits && other.number == 0;
    return other.in_use || (other.has_commits && !discards);
  });
  request.passed = std::move(found.others);
}

}  // namespace terrace::c
