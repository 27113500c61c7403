#include <terrace/runtime/train/checkpoint/found_commit.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/runtime/train/checkpoint/commit_info.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string names_of(std::span<const fs::path> paths) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.string());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<fs::path> tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths;
  const auto add = [&](Placement role, const std::vector<fs::path>& more) {
    for (const fs::path& path : more) {
      std::error_code error;  // one folder may have two names
      const auto same = [&](const fs::path& known) {
        return known == path || fs::equivalent(known, path, error);
      };
      if (role == Placement::nvme && std::none_of(paths.begin(), paths.end(), same)) paths.push_back(path);
    }
  };
  add(placement.states, placement.state_paths);
  add(placement.parameters, placement.parameter_paths);
  return paths;
}

TierContents look_for_commit(std::span<const fs::path> paths) {
  TierContents contents;
  if (paths.empty()) return contents;
  const FoundTier tier = look_at_tier(paths);
  contents.in_use = tier.in_use;
  contents.has_commits = tier.has_manifests;
  contents.commit_count = tier.commits.size();
  contents.paths_fit = tier.paths_fit;
  if (!contents.has_commits) return contents;
  contents.trouble = tier.trouble;
  if (!tier.whole) return contents;
  SavedState newest;
  newest.kind = SavedState::Kind::commit;
  newest.path = tier.commits.back().path;
  newest.commit = tier.commit;
  std::error_code ignored;
  newest.time = fs::last_write_time(newest.path, ignored);
  newest.is_latest = true;
  try {
    newest.run = parse_commit_info(tier.newest.info, newest.path);
    contents.newest = std::move(newest);
  } catch (const Error& failure) {
    contents.trouble = failure.what();
  }
  return contents;
}

SavedState require_commit(const TrainConfig& config) {
  constexpr const char* kWhat = "cannot go on from the commit on nvme";
  const std::vector<fs::path> paths = tier_paths(config.placement);
  if (config.placement.states != Placement::nvme || !config.terrace.durable) {
    throw Error(ErrorKind::config, {kWhat, names_of(paths),
                                    config.placement.states != Placement::nvme
                                        ? "the optimizer states of this run are not on nvme"
                                        : "terrace.durable is false, and the run would overwrite it",
                                    "give the flags and the configuration of the run that made it"});
  }
  TierContents contents = look_for_commit(paths);
  if (contents.newest) return *std::move(contents.newest);
  if (!contents.has_commits) {
    throw Error(ErrorKind::config,
                {kWhat, names_of(paths), "there is none", "check the path, or start anew"});
  }
  throw Error(ErrorKind::corrupt,
              {kWhat, names_of(paths), contents.trouble,
               "give every path of the run that made it, resume from a checkpoint, or start anew "
               "(TrainerOptions::discard_commits)"});
}

}  // namespace terrace
