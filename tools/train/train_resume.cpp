#include "train/train_resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/moments_as.h>
#include <terrace/runtime/config/parameter_groups.h>
#include <terrace/runtime/config/run_settings.h>
#include <terrace/runtime/config/tier_paths.h>

#include "command_line.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string names_of(const std::vector<fs::path>& paths) {
  return text_of_paths(paths, " ");
}

bool is_unread(const Error& failure) {
  return is_drive_failure(failure.parts().error_number);
}

// The run computes the steps behind the older checkpoint again, with the same numbers, and saves them in the
// place of one that a drive did not read.
void say_fallback(const std::string& failed, const Error& failure, const fs::path& next, Log& log) {
  const std::string name = next.filename().string();
  if (is_unread(failure)) {
    log.warning(
        fmt::format("THE DRIVE DID NOT READ {}, which may be whole, and the one before it, {}, is taken. "
                    "A save of the same step replaces it: stop the run now to keep it. {}",
                    failed, name, failure.in(Door::program)));
  } else {
    log.warning(fmt::format("{} cannot be used and the one before it, {}, is taken: {}", failed, name,
                            failure.in(Door::program)));
  }
}

// A commit that is given up is removed, so one that a drive did not read is not given up.
[[noreturn]] void unread_commit_stays(const Error& failure) {
  ErrorParts parts = failure.parts();
  parts.advice =
      "see the kernel's log (dmesg), and start again; --resume DIR --fresh gives the commit up, and goes on "
      "from "
      "the checkpoint";
  throw Error(failure.kind(), std::move(parts));
}

[[noreturn]] void none_is_whole(const std::string& folder, const Error& failure) {
  ErrorParts parts = failure.parts();
  parts.advice =
      fmt::format("no checkpoint in {} is whole: restore one, or save a new run to another folder", folder);
  throw Error(failure.kind(), std::move(parts));
}

// Returns the checkpoints of --save, the best first. Those before the first whose information can be read are
// left out.
std::vector<fs::path> readable_checkpoints(const std::string& folder, Log& log) {
  std::vector<fs::path> candidates;
  if (!folder.empty()) candidates = checkpoints_to_resume_from(folder);
  while (!candidates.empty()) {
    try {
      read_checkpoint_info(candidates.front());
      break;
    } catch (const Error& failure) {
      if (!is_damage(failure) && !is_unread(failure)) throw;
      if (candidates.size() == 1) none_is_whole(folder, failure);
      say_fallback(candidates[0].string(), failure, candidates[1], log);
      candidates.erase(candidates.begin());
    }
  }
  return candidates;
}

std::string described(const SavedState& commit) {
  return fmt::format("step {} of \"{}\", committed {}", commit.run.step, commit.run.model,
                     time_text(commit.time));
}

// What the nvme paths of a run hold.
struct Found {
  std::vector<fs::path> paths;
  TierOfRank seat;                  // the place of this rank's tier: of two the one with the further state
  TierContents own;                 // what is there
  std::optional<StateSet> own_set;  // the same of all ranks, where this process sees it
  std::vector<StateSet> others;     // in other places
  // Of as many ranks, with commits, and not where this run's ranks have theirs, which have none.
  std::optional<StateSet> elsewhere;

  bool has_commits() const {
    return own.has_commits ||
           std::ranges::any_of(others, [](const StateSet& set) { return set.contents.has_commits; });
  }
  // What a run might go on from, or would lose: the state that is furthest, else one that is damaged.
  const TierContents& furthest() const;
  const StateSet* set_of(const TierContents& contents) const {
    const auto set = std::ranges::find(others, &contents, [](const StateSet& s) { return &s.contents; });
    return set != others.end() ? &*set : nullptr;
  }
};

bool is_further(const TierContents& one, const TierContents& other) {
  const auto rank_of = [](const TierContents& contents) {
    const bool is_whole = contents.newest.has_value();
    return std::tuple(is_whole, is_whole ? contents.newest->run.step : 0, contents.has_commits);
  };
  return rank_of(one) > rank_of(other);
}

const TierContents& Found::furthest() const {
  const TierContents* best = &own;
  for (const StateSet& set : others) {
    if (is_further(set.contents, *best)) best = &set.contents;
  }
  return *best;
}

TierContents look_in(const TierOfRank& seat, const TrainConfig& config, Communicator* ranks) {
  PlacementConfig placement = config.placement;
  placement.tier_name = tier_name_of(seat);
  return look_for_commit(placement, ranks);
}

Found find_states(const TrainConfig& config, Communicator* ranks) {
  Found found;
  found.paths = paths_of_all_ranks(config.placement);
  found.seat = {ranks != nullptr ? ranks->rank() : 0, config.batch.ranks};
  TierOfRank second = found.seat;
  second.is_second = true;
  found.own = look_in(found.seat, config, ranks);
  TierContents other = look_in(second, config, ranks);
  if (is_further(other, found.own)) {
    std::swap(found.own, other);
    found.seat = second;
  }
  const bool may_be_elsewhere = found.seat.ranks > 1 && !found.own.has_commits;
  for (StateSet& set : find_state_sets(found.paths)) {
    const bool is_of_as_many = set.shards.size() == found.seat.ranks;
    if (is_of_as_many && may_be_elsewhere && set.contents.has_commits) {
      found.elsewhere = std::move(set);
    } else if (set.place() == found.seat.place()) {
      found.own_set = std::move(set);
    } else if (!is_of_as_many || set.contents.has_commits == other.has_commits) {
      found.others.push_back(std::move(set));
    }
  }
  return found;
}

// Where each rank's part of a state is, for people.
std::string places_of(const StateSet& set) {
  std::string text;
  for (size_t r = 0; r < set.shards.size(); ++r)
    text += fmt::format("{}that of rank {} is in {}", r == 0 ? "" : ", ", r, names_of(set.shards[r]));
  return text;
}

// A state of as many ranks that lies elsewhere than this run's ranks look, each in its own paths, would
// neither be gone on from nor be protected.
void require_own_places(const Found& found) {
  if (!found.elsewhere) return;
  throw Error(
      ErrorKind::config,
      {"the state of another run is on the nvme paths, and not where these ranks have theirs",
       names_of(found.paths), places_of(*found.elsewhere),
       fmt::format("give the paths in the order of the run that made it (and its terrace.nvme_share), "
                   "go on with another number of ranks, or remove it with `terrace checkpoint prune {} "
                   "--all`",
                   names_of(found.paths))});
}

void require_nothing_to_lose(const TierContents& tier, const std::vector<fs::path>& paths) {
  if (!tier.has_commits) return;
  throw Error(
      ErrorKind::config,
      {paths.size() == 1 ? "the nvme path holds the state of an earlier run"
                         : "the nvme paths hold the state of an earlier run",
       names_of(paths), tier.newest ? described(*tier.newest) : tier.trouble,
       fmt::format("{}; `terrace checkpoint prune {} --all` removes it",
                   tier.is_of_other_program ? "give another path, or --fresh to begin anew and give it up"
                                            : "add --resume auto to go on from it, or --fresh to begin anew",
                   names_of(paths))});
}

// Two saved states may replace each other only if these facts of their runs agree.
void require_one_run(const CheckpointInfo& commit, const CheckpointInfo& checkpoint, const fs::path& folder,
                     const std::vector<fs::path>& paths) {
  const auto same = [&](const char* fact) {
    const auto one = commit.position.find(fact), other = checkpoint.position.find(fact);
    return one != commit.position.end() && other != checkpoint.position.end() && one->second == other->second;
  };
  if (commit.tensor_hash == checkpoint.tensor_hash && commit.seed == checkpoint.seed &&
      same("data_fingerprint") && same("train_tokens") && same("context"))
    return;
  throw Error(
      ErrorKind::config,
      {"cannot choose where to go on from", names_of(paths),
       fmt::format(
           "the commit there (step {} of \"{}\") and the checkpoint {} (step {} of \"{}\") are of two runs",
           commit.step, commit.model, folder.string(), checkpoint.step, checkpoint.model),
       "name the one that is meant: --resume nvme with another --save, or --resume DIR with --fresh"});
}

// States in several places replace each other as well.
void require_one_run(const Found& found) {
  const TierContents& best = found.furthest();
  const auto require = [&](const TierContents& other) {
    if (other.newest && best.newest)
      require_one_run(best.newest->run, other.newest->run, other.newest->path, found.paths);
  };
  require(found.own);
  for (const StateSet& set : found.others) require(set.contents);
}

// The run reads the commit that is in its ranks' own place. What is left in the other one goes.
void begin_in_other_place(RunStart& start, Found& found) {
  start.set = found.own_set;
  found.seat.is_second = !found.seat.is_second;
  const auto left = std::ranges::find(found.others, found.seat.place(), &StateSet::place);
  if (left != found.others.end()) {
    start.discard_commits = left->contents.has_commits;
    found.others.erase(left);
  }
  found.others.push_back(*found.own_set);
}

// The state on nvme that is furthest; it must be whole.
void take_furthest(RunStart& start, Found& found, const TrainConfig& config) {
  require_one_run(found);
  const TierContents& best = found.furthest();
  const SavedState newest = require_commit(config, best);
  const RecordLayout mine = record_layout(config);
  if (const StateSet* const set = found.set_of(best)) {
    start.set = *set;
    start.discard_commits = found.own.has_commits;
  } else if (found.own_set && found.own_set->newest() != nullptr && best.layout != mine &&
             best.layout.moment_count == mine.moment_count) {
    begin_in_other_place(start, found);
  } else {
    start.commit = newest;
  }
  if (start.set && best.layout != mine) start.conversion = text_of_conversion(best.layout, mine);
}

// A checkpoint or a new start must not remove older commits, which may be better.
[[noreturn]] void older_commits_stay(const std::vector<fs::path>& paths, const std::string& damage) {
  throw Error(ErrorKind::corrupt,
              {"cannot go on from the newest commit in", names_of(paths), damage,
               fmt::format("there are older ones: `terrace checkpoint prune {} --damaged` removes what is "
                           "damaged, and --resume nvme goes on from the newest that is left; a checkpoint "
                           "instead of all of them: --resume DIR --fresh",
                           names_of(paths))});
}

RunStart choose_by_itself(const TrainFlags& flags, const TrainConfig& config, Found& found, Log& log) {
  const TierContents tier = found.furthest();
  const std::vector<fs::path>& paths = found.paths;
  RunStart start;
  start.checkpoints = readable_checkpoints(flags.save, log);
  if (tier.newest) {
    const uint64_t step = tier.newest->run.step;
    uint64_t saved = 0;
    if (!start.checkpoints.empty()) {
      const CheckpointInfo info = read_checkpoint_info(start.checkpoints.front());
      require_one_run(tier.newest->run, info, start.checkpoints.front(), paths);
      saved = info.step;
    }
    start.discard_commits = found.own.has_commits && !start.checkpoints.empty();
    if (start.checkpoints.empty() || step >= saved) {
      take_furthest(start, found, config);
      log.info(fmt::format("--resume auto: going on from the commit in {}, step {}", names_of(paths), step));
      return start;
    }
    start.given_up = fmt::format(
        "the commit in {} is of step {}, earlier than the checkpoint: it is given up", names_of(paths), step);
  } else if (tier.has_commits) {
    // require_commit() throws what is wrong. If a path was left out, nothing is damaged, nor is what another
    // program has made.
    const bool may_be_damaged = tier.paths_fit && !tier.is_of_other_program;
    if (may_be_damaged && tier.commit_count > 1) older_commits_stay(paths, tier.trouble);
    if (start.checkpoints.empty() || !may_be_damaged) require_commit(config, tier);
    log.warning(fmt::format("THE COMMIT IN {} CANNOT BE USED and a checkpoint is taken instead: {}",
                            names_of(paths), tier.trouble));
    start.discard_commits = true;
  }
  if (start.checkpoints.empty()) {
    const std::string where = flags.save.empty() ? names_of(paths) : flags.save;
    log.info(fmt::format("--resume auto: no checkpoint is in {}, the run starts at its beginning", where));
  } else {
    const fs::path& best = start.checkpoints.front();
    log.info(fmt::format("--resume auto: going on from {}, step {}", best.string(),
                         read_checkpoint_info(best).step));
  }
  return start;
}

// Takes the first checkpoint for which `take` does not throw. If all are damaged, throws the failure of the
// last. Where commits are given up for the checkpoints, none is passed over because its drive did not read
// it.
void take_first(std::span<const fs::path> checkpoints, bool gives_up_commits,
                FunctionRef<void(const fs::path&)> take, Log& log) {
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    try {
      take(checkpoints[i]);
      return;
    } catch (const Error& failure) {
      const bool may_pass = is_damage(failure) || (is_unread(failure) && !gives_up_commits);
      if (!may_pass || i + 1 == checkpoints.size()) throw;
      say_fallback(checkpoints[i].string(), failure, checkpoints[i + 1], log);
    }
  }
}

// The number of the first checkpoint that can be resumed. Of several ranks the first one reads them all;
// where none is whole it ends, and so do the others.
uint64_t first_resumable(std::span<const fs::path> checkpoints, const TrainerOptions& options,
                         const TrainingSetup& setup, const TrainingData& data, Log& log) {
  uint64_t found = 0;
  if (options.communicator != nullptr && options.communicator->rank() > 0) return found;
  const auto require = [&](const fs::path& checkpoint) {
    Trainer::require_resumable(checkpoint, options, setup, data);
    found = static_cast<uint64_t>(&checkpoint - checkpoints.data());
  };
  take_first(checkpoints, options.discard_commits, require, log);
  return found;
}

// The run of the state that is gone on from.
std::optional<CheckpointInfo> run_of(const RunStart& start) {
  if (start.commit) return start.commit->run;
  if (start.set) return start.set->newest()->run;
  if (start.checkpoints.empty()) return std::nullopt;
  return read_checkpoint_info(start.checkpoints.front());
}

RunStart choose_from(Found& found, const TrainFlags& flags, const TrainConfig& config, Log& log) {
  const std::vector<fs::path>& paths = found.paths;
  RunStart start;
  if (flags.resume == kResumeNvme) {
    take_furthest(start, found, config);
    const std::vector<fs::path> saved = readable_checkpoints(flags.save, log);
    if (!saved.empty())
      require_one_run(*run_of(start), read_checkpoint_info(saved.front()), saved.front(), paths);
    return start;
  }
  const bool is_named = !flags.resume.empty() && flags.resume != kResumeAuto;
  if (is_named) {  // a mistyped name is told before what would be lost
    require_exists("--resume", flags.resume);
    read_checkpoint_info(flags.resume);
  }
  if (flags.fresh && found.has_commits()) {
    const TierContents& tier = found.furthest();
    start.given_up = fmt::format("--fresh: the state in {} is given up{}", names_of(paths),
                                 tier.newest ? ": " + described(*tier.newest) : "");
    start.discard_commits = found.own.has_commits;
    found.own = {};
    for (StateSet& set : found.others) set.contents = {};
  }
  if (flags.resume == kResumeAuto) {
    RunStart chosen = choose_by_itself(flags, config, found, log);
    chosen.discard_commits |= start.discard_commits;
    return chosen;
  }
  const TierContents& tier = found.furthest();
  if (!tier.in_use) require_nothing_to_lose(tier, paths);  // otherwise the lock names the job that uses it
  if (is_named) start.checkpoints = {flags.resume};
  return start;
}

// A run without states on nvme takes up no commit, and must not begin before one that it is shown.
void require_none_passed_over(const TrainFlags& flags, const TrainConfig& config,
                              const std::optional<CheckpointInfo>& run) {
  if (flags.resume != kResumeAuto || config.placement.states == Placement::nvme) return;
  const std::vector<fs::path> paths(flags.nvme_paths.begin(), flags.nvme_paths.end());
  for (const StateSet& set : find_state_sets(paths)) {
    const SavedState* const commit = set.newest();
    if (commit == nullptr || (run && run->step >= commit->run.step)) continue;
    throw Error(
        ErrorKind::config,
        {"--resume auto would begin before the last commit", names_of(paths),
         fmt::format("{} is there, and the optimizer states of this run are not on nvme", described(*commit)),
         "place them on nvme to go on from it, or leave --nvme-path out"});
  }
}

}  // namespace

RunStart choose_start(const TrainFlags& flags, const TrainConfig& config, Communicator* ranks, Log& log) {
  Found found = find_states(config, ranks);
  for (const StateSet& set : found.others) {
    if (set.contents.in_use)
      throw Error(ErrorKind::io, {"cannot use the nvme path", names_of(found.paths),
                                  fmt::format("a job of {} ranks is using it", set.shards.size()),
                                  "wait for its end, or name another path"});
  }
  require_own_places(found);
  RunStart start = choose_from(found, flags, config, log);
  start.tier_name = tier_name_of(found.seat);
  const std::optional<CheckpointInfo> run = run_of(start);
  require_none_passed_over(flags, config, run);
  for (StateSet& set : found.others) {
    if (!set.contents.has_commits || (run && set.run_id == run->run_id)) {
      start.passed.push_back(std::move(set));
    } else {
      const std::string& trouble = set.contents.trouble;
      log.warning(fmt::format("what {} rank{} committed in {} is no part of this run, and stays{}{}",
                              set.shards.size(), set.shards.size() == 1 ? " has" : "s have",
                              names_of(found.paths), trouble.empty() ? "" : ": ", trouble));
    }
  }
  return start;
}

void keep_gradient_group(const RunStart& start, BatchConfig& batch) {
  if (const std::optional<CheckpointInfo> run = run_of(start))
    return keep_gradient_group(run->settings, fmt::format("step {} of \"{}\"", run->step, run->model), batch);
  if (!batch.gradient_group) batch.gradient_group = batch.new_gradient_group();
}

std::map<std::string, std::string> facts_of(const RunStart& start) {
  std::string commit = "none";
  if (start.commit) commit = fmt::format("{} of step {}", start.commit->commit, start.commit->run.step);
  if (start.set)
    commit =
        fmt::format("{} of step {} of {} ranks{}", start.set->newest()->commit, start.set->newest()->run.step,
                    start.set->shards.size(), start.set->is_second ? ", in their second place" : "");
  return {{"commit to go on from", commit},
          {"checkpoints to go on from", start.checkpoints.empty() ? "none" : names_of(start.checkpoints)}};
}

std::unique_ptr<Trainer> make_trainer(const RunStart& start, TrainerOptions& options, TrainingSetup setup,
                                      const TrainingData& data,
                                      FunctionRef<void(TrainingSetup&)> before_making, Log& log) {
  if (start.commit) {
    try {
      before_making(setup);
      return std::make_unique<Trainer>(options, std::move(setup), data, log);
    } catch (const Error& failure) {
      const std::vector<fs::path> paths = tier_paths(options.config.placement);
      if (is_unread(failure) && !start.checkpoints.empty()) unread_commit_stays(failure);
      if (is_damage(failure) && look_for_commit(own_tier_paths(options.config.placement)).commit_count > 1)
        older_commits_stay(paths, failure.in(Door::program));
      if (!is_damage(failure) || start.checkpoints.empty() || options.communicator != nullptr) throw;
      log.warning(
          fmt::format("THE COMMIT OF STEP {} CANNOT BE USED and the checkpoint {} is taken instead: {}",
                      start.commit->run.step, start.checkpoints.front().string(), failure.in(Door::program)));
    }
    options.tier_start = TierStart::fresh;
    options.discard_commits = start.discard_commits;
    setup = plan_training(options);
  }
  std::span<const fs::path> checkpoints = start.checkpoints;
  // The commits are gone once there is a trainer. Ranks load together, so that none may find the damage then.
  if (!start.set && !checkpoints.empty() && (options.discard_commits || options.communicator != nullptr)) {
    const RankVotes ranks(options.communicator);
    checkpoints =
        checkpoints.subspan(ranks.of_first(first_resumable(checkpoints, options, setup, data, log)), 1);
  }
  before_making(setup);
  auto trainer = std::make_unique<Trainer>(options, std::move(setup), data, log);
  if (start.set) {
    try {
      trainer->resume(*start.set);
      return trainer;
    } catch (const Error& failure) {
      if (is_unread(failure) && !checkpoints.empty()) unread_commit_stays(failure);
      if (!is_damage(failure) || checkpoints.empty() || options.communicator != nullptr) throw;
      say_fallback(start.set->newest()->path.string(), failure, checkpoints.front(), log);
    }
  }
  take_first(
      checkpoints, false, [&](const fs::path& checkpoint) { trainer->resume(checkpoint); }, log);
  return trainer;
}

}  // namespace terrace
