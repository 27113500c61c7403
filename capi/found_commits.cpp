#include <terrace/capi/found_commits.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
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

// What is left in one place, as one rank sees it.
struct ShownState {
  TierPlace place{0};  // of 0 ranks: nothing
  bool has_commits = false, in_use = false, is_early = false;
  uint64_t commit = 0;       // 0: none is whole
  RecordLayout layout = {};  // of its records, where it is whole
  uint64_t number = 0;       // CommitText::number of the newest; kUnreadable where nobody can know
  std::array<char, 240> trouble{};
};

struct Found {
  std::vector<fs::path> paths;  // of all ranks
  // Of the two places of as many ranks, that with the further state.
  ShownState own;
  std::optional<StateSet> own_set;             // what is there, as this process sees it
  std::vector<StateSet> others;                // the same in other places
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
  ShownState shown{.place = set.place(),
                   .has_commits = set.contents.has_commits,
                   .in_use = set.contents.in_use,
                   .commit = set.contents.commit};
  for (const ShardPaths& shard : set.shards) {
    if (shown.has_commits && !shard.empty()) add_newest(shown, shard, shown.commit);
  }
  say_trouble(shown, set.contents.trouble);
  return shown;
}

std::string tier_name_in(const Request& request, const TierPlace& place) {
  return tier_name_of({request.options.rank, place.ranks, place.is_second}, request.tier_name);
}

ShownState own_state(const Request& request, const TierPlace& place) {
  OffloadOptions there = request.options;
  there.tier_name = tier_name_in(request, place);
  const std::vector<fs::path> folders = tier_folders(there);
  ShownState own{.place = place};
  if (place.ranks > 1) {
    const CommonTier common = common_tier(folders, *request.options.hooks.communicator);
    own.has_commits = common.has_commits;
    own.commit = common.commit;
  } else {
    const FoundTier tier = look_at_tier(folders);
    own.has_commits = tier.has_manifests;
    own.commit = tier.whole ? tier.commit : 0;
  }
  if (own.has_commits) add_newest(own, folders, own.commit);
  if (own.commit > 0) own.layout = look_at_tier(folders, own.commit).newest.layout;
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

// Of the two places of as many ranks, that with the further state.
ShownState further_state(const Request& request) {
  const ShownState first = own_state(request, {request.options.ranks});
  const ShownState second = own_state(request, {request.options.ranks, true});
  const auto rank_of = [](const ShownState& state) {
    return std::tuple(state.commit > 0, state.number, state.has_commits);
  };
  return rank_of(second) > rank_of(first) ? second : first;
}

Found find(const Request& request) {
  const RankVotes votes(request.options.hooks.communicator);
  static_cast<void>(tier_folders(request.options));  // refuses a name before the others are asked
  return asked(request, [&] {
    Found found;
    found.paths = paths_of_all(votes, request.options);
    found.own = further_state(request);
    for (StateSet& set : find_state_sets(found.paths, {}, request.tier_name)) {
      if (set.place() == found.own.place) {
        found.own_set = std::move(set);
      } else {
        found.others.push_back(std::move(set));
      }
    }
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

using OtherStates = std::map<TierPlace, OtherState>;

OtherStates others_of(const Found& found) {
  OtherStates others;
  std::map<TierPlace, const ShownState*> first;
  for (const std::vector<ShownState>& of_rank : found.shown) {
    for (const ShownState& shown : of_rank) {
      if (shown.place.ranks == 0) continue;
      OtherState& other = others[shown.place];
      other.has_commits = other.has_commits || shown.has_commits;
      other.in_use = other.in_use || shown.in_use;
      other.number = std::max(other.number, shown.number);
      if (shown.has_commits) first.try_emplace(shown.place, &shown);
    }
  }
  for (auto& [place, other] : others) {
    for (size_t r = 0; r < found.shown.size() && other.has_commits && other.trouble.empty(); ++r) {
      const auto shown = std::ranges::find(found.shown[r], place, &ShownState::place);
      other.trouble = trouble_on(shown != found.shown[r].end() ? &*shown : nullptr, *first.at(place));
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

// The other place whose commit is the furthest; none: it is in the ranks' own place, if anywhere.
std::optional<TierPlace> furthest(const Found& found, const OtherStates& others) {
  std::optional<TierPlace> best;
  bool is_whole = found.own.commit > 0;
  uint64_t number = is_whole ? found.own.number : 0;
  for (const auto& [place, other] : others) {
    if (!other.has_commits || !other.trouble.empty() || (is_whole && other.number <= number)) continue;
    best = place, number = other.number, is_whole = true;
  }
  // What is further, and not whole here, must not be passed over.
  for (const auto& [place, other] : others) {
    if (other.has_commits && !other.trouble.empty() && (!is_whole || other.number > number))
      refuse_unseen(found, place.ranks, other);
  }
  const bool own_is_damaged = found.own.has_commits && found.own.commit == 0;
  if (own_is_damaged && found.own.number > number) return std::nullopt;  // the store says what is wrong
  return best;
}

// Whether this store has to read the commit in its own place, because its records have another layout.
// Every rank needs the shards of all.
bool converts(const Request& request, const Found& found) {
  const RecordLayout& mine = request.options.record_layout;
  if (found.own.commit == 0 || found.own.is_early || found.own.layout == mine ||
      found.own.layout.moment_count != mine.moment_count)
    return false;
  const bool is_seen = found.own_set && found.own_set->contents.commit == found.own.commit;
  if (RankVotes(request.options.hooks.communicator).any(!is_seen))
    refuse_unseen(found, request.options.ranks, {.trouble = "its records have another layout"});
  return true;
}

// The store reads the commit that is in its own place, and begins in the other one. What is left there goes.
void begin_in_other_place(Request& request, Found& found) {
  request.set = found.own_set;
  const TierPlace other{found.own.place.ranks, !found.own.place.is_second};
  request.options.tier_name = tier_name_in(request, other);
  request.options.tier_start = TierStart::fresh;
  std::erase_if(found.others, [&](const StateSet& set) {
    if (set.place() != other) return false;
    request.options.discard_commits |= set.contents.has_commits;
    return true;
  });
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
  const OtherStates others = others_of(found);
  options.tier_name = tier_name_in(request, found.own.place);
  const bool resumes = options.tier_start == TierStart::resume, discards = options.discard_commits;
  bool is_converted = false;
  uint64_t greatest = found.own.number == kUnreadable ? 0 : found.own.number;
  for (const auto& [place, other] : others) {
    if (other.in_use && (options.durable || other.has_commits)) refuse_use(found, place.ranks);
    if (other.has_commits && !resumes && !discards) refuse_loss(found, place.ranks);
    if (other.number != kUnreadable) greatest = std::max(greatest, other.number);
  }
  request.commit_number = greatest + 1;
  if (resumes) {
    if (const std::optional<TierPlace> best = furthest(found, others)) {
      request.set = *std::ranges::find(found.others, *best, &StateSet::place);
      options.tier_start = TierStart::fresh;
      options.discard_commits = options.discard_commits || found.own.has_commits;
    } else if (converts(request, found)) {
      begin_in_other_place(request, found);
      is_converted = true;
    }
  }
  if (options.rank != 0) return;
  // What an earlier Terrace made may be of another run. A store without commits of its own takes the place of
  // none, and may run beside another job.
  std::erase_if(found.others, [&](const StateSet& set) {
    const OtherState& other = others.at(set.place());
    if (options.durable) return resumes && other.has_commits && other.number == 0;
    return other.in_use || (other.has_commits && !discards);
  });
  request.passed = std::move(found.others);
  if (is_converted) request.passed.push_back(*std::move(found.own_set));
}

}  // namespace terrace::c
