#include <terrace/runtime/checkpoint/found_commit.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/tiers/common_tier.h>
#include <terrace/runtime/checkpoint/internal/saved_commit.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Takes up what the newest commit says of its run.
void add_newest(TierContents& contents, const FoundTier& tier) {
  contents.commit = tier.commit;
  contents.layout = tier.newest.layout;
  SavedState newest = saved_commit(tier.commits.back());
  newest.is_latest = true;
  try {
    add_contents(newest, tier.newest);
    contents.is_of_other_program = newest.is_of_other_program;
    if (newest.is_of_other_program) {
      contents.trouble = fmt::format(
          "commit {}, which is whole, is of a program that embeds the memory manager, such as an engine of "
          "PyTorch",
          newest.commit);
    } else {
      contents.newest = std::move(newest);
    }
  } catch (const Error& failure) {
    contents.trouble = failure.without_advice();
  }
}

}  // namespace

std::string text_of_paths(std::span<const fs::path> paths, std::string_view between) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.string());
  return fmt::format("{}", fmt::join(names, between));
}

TierContents look_for_commit(std::span<const fs::path> paths, uint64_t commit) {
  TierContents contents;
  if (paths.empty()) return contents;
  const FoundTier tier = look_at_tier(paths, commit);
  contents.is_present = tier.present;
  contents.in_use = tier.in_use;
  contents.has_commits = tier.has_manifests;
  contents.commit_count = tier.commits.size();
  contents.paths_fit = tier.paths_fit;
  if (!contents.has_commits) return contents;
  contents.trouble = tier.trouble;
  if (tier.whole) add_newest(contents, tier);
  return contents;
}

TierContents contents_of(const CommonTier& common, std::span<const fs::path> first) {
  TierContents contents;
  contents.is_present = true;
  contents.in_use = common.in_use;
  contents.has_commits = common.has_commits;
  contents.whole = common.whole;
  contents.commit_count = common.whole.size() + (common.trouble.empty() ? 0 : 1);
  contents.paths_fit = true;
  contents.trouble = common.trouble;
  if (common.commit > 0) add_newest(contents, look_at_tier(first, common.commit));
  return contents;
}

TierContents look_for_commit(const PlacementConfig& placement, Communicator* ranks) {
  const std::vector<fs::path> paths = own_tier_paths(placement);
  if (ranks == nullptr || paths.empty()) return look_for_commit(paths);
  return contents_of(common_tier(paths, *ranks), paths);
}

SavedState require_commit(const TrainConfig& config, uint64_t commit) {
  return require_commit(config, look_for_commit(own_tier_paths(config.placement), commit));
}

SavedState require_commit(const TrainConfig& config, TierContents contents) {
  constexpr const char* kWhat = "cannot go on from the commit on nvme";
  const std::vector<fs::path> paths = tier_paths(config.placement);
  if (config.placement.states != Placement::nvme || !config.terrace.durable) {
    throw Error(ErrorKind::config, {kWhat, text_of_paths(paths),
                                    config.placement.states != Placement::nvme
                                        ? "the optimizer states of this run are not on nvme"
                                        : "terrace.durable is false, and the run would overwrite it",
                                    "give the flags and the configuration of the run that made it"});
  }
  if (contents.newest) return *std::move(contents.newest);
  if (!contents.has_commits) {
    throw Error(ErrorKind::config,
                {kWhat, text_of_paths(paths), "there is none", "check the path, or start anew"});
  }
  if (contents.is_of_other_program) {
    throw Error(ErrorKind::config, {kWhat, text_of_paths(paths), contents.trouble,
                                    "go on from it with that program, or give another path; " +
                                        Option::discard_commits + " gives the state there up"});
  }
  throw Error(ErrorKind::corrupt,
              {kWhat, text_of_paths(paths), contents.trouble,
               "give every path of the run that made it, resume from a checkpoint, or start anew (" +
                   Option::discard_commits + ")"});
}

}  // namespace terrace
