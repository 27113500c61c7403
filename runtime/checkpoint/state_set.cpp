#include <terrace/runtime/checkpoint/state_set.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/runtime/checkpoint/commit_info.h>
#include <terrace/runtime/checkpoint/internal/set_streams.h>
#include <terrace/runtime/checkpoint/load_steps.h>
#include <terrace/runtime/checkpoint/moments_as.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGoOn = "cannot go on from the state of another run";

// The folders of a shard in these paths.
ShardPaths paths_of(std::span<const fs::path> paths, const TierOfRank& shard, std::string_view store) {
  ShardPaths folders;
  const std::string name = tier_name_of(shard, store);
  for (const fs::path& path : paths) {
    const fs::path folder[] = {name.empty() ? path : path / name};
    // A path of its own that another rank has now may hold nothing of one rank.
    if (shard.place() == TierPlace{} ? look_at_tier(folder).present : io::is_folder(folder[0]))
      folders.push_back(folder[0]);
  }
  return folders;
}

// The places in these paths where ranks have left a tier, and always the first of one rank.
std::set<TierPlace> places_in(std::span<const fs::path> paths, std::string_view store) {
  std::set<TierPlace> places = {TierPlace{}};
  for (const fs::path& path : paths) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      const std::optional<TierOfRank> rank = parse_tier_name(entry.path().filename().string(), store);
      if (rank) places.insert(rank->place());
    }
    if (error && error != std::errc::no_such_file_or_directory)
      throw Error(ErrorKind::io, {"cannot look for states in", path.string(), system_reason(error.value()),
                                  "see that the path may be read"});
  }
  return places;
}

// What the first shard says whose commit can be read.
std::optional<uint64_t> run_of(const std::vector<ShardPaths>& shards) {
  for (const ShardPaths& paths : shards) {
    const FoundTier found = look_at_tier(paths);
    if (found.commits.empty()) continue;
    try {
      return parse_commit_info(found.newest.info, found.commits.back().path).run_id;
    } catch (const Error&) {
      // Another shard may say it.
    }
  }
  return std::nullopt;
}

// Before the first byte of the state changes.
void require_fit(const SetStreams& streams, const fs::path& where, uint64_t states_bytes,
                 uint64_t frozen_bytes, Offloader& offloader) {
  const RecordLayout mine = offloader.plan().record_layout.canonical();
  const RecordLayout saved = streams.layout().canonical();
  checkpoint::require_same_moments(where, saved, mine);
  const bool has_bytes = states_bytes == offloader.state().record_tile_count() * saved.tile_bytes() &&
                         frozen_bytes == offloader.state().frozen_bytes();
  if (!has_bytes)
    throw Error(ErrorKind::corrupt, {kGoOn, where.string(),
                                     fmt::format("it holds {} bytes of states and {} of frozen parameters",
                                                 states_bytes, frozen_bytes),
                                     "its tensors make others: resume from a checkpoint"});
  if (streams.tensor_steps().size() != offloader.state().tensor_steps().size())
    throw Error(ErrorKind::config,
                {kGoOn, where.string(),
                 fmt::format("it counts the steps of {} tensors, and this run those of {}",
                             streams.tensor_steps().size(), offloader.state().tensor_steps().size()),
                 "give " + Option::unused_gradients + " of the run that made it"});
}

// Every rank reads what is its own. Returns the text of the commit.
std::string load_shards(const StateSet& set, uint64_t commit, const fs::path& where,
                        FunctionRef<void(const std::string& text)> require, Offloader& offloader, Log& log) {
  const SetStreams streams(set.shards, commit, kGoOn);
  require(streams.info());
  SetStreams::States states = streams.states();
  SetStreams::Store frozen = streams.frozen();
  require_fit(streams, where, states.bytes(), frozen.bytes(), offloader);
  ProgressReport progress(log, fmt::format("loading {}", where.string()), states.bytes() + frozen.bytes());
  const auto from = [&](auto& stream) {
    return [&](std::span<std::byte> bytes) {
      stream.read(bytes);
      progress.add(bytes.size());
    };
  };
  const auto over = [&](auto& stream) {
    return [&](uint64_t bytes) {
      stream.skip(bytes);
      progress.add(bytes);
    };
  };
  checkpoint::import_records(streams.layout().canonical(), from(states), over(states), offloader);
  if (frozen.bytes() > 0) offloader.state().import_frozen(from(frozen), over(frozen));
  if (!streams.tensor_steps().empty()) offloader.state().set_tensor_steps(streams.tensor_steps());
  return streams.info();
}

}  // namespace

std::string text_of_rank_count(uint64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::vector<StateSet> find_state_sets(std::span<const fs::path> paths, std::optional<TierPlace> but,
                                      std::string_view store) {
  std::vector<StateSet> sets;
  if (paths.empty()) return sets;
  for (const auto& [count, is_second] : places_in(paths, store)) {
    if (but == TierPlace{count, is_second}) continue;
    StateSet set;
    set.store = store;
    set.is_second = is_second;
    for (uint32_t shard = 0; shard < count; ++shard)
      set.shards.push_back(paths_of(paths, {shard, count, is_second}, store));
    const bool is_apart = set.place() != TierPlace{};
    if (!is_apart && set.shards.front().empty()) continue;
    set.contents = is_apart ? contents_of(common_tier(set.shards), set.shards.front())
                            : look_for_commit(set.shards.front());
    if (set.newest() != nullptr) {
      set.run_id = set.newest()->run.run_id;
    } else if (set.contents.has_commits) {
      set.run_id = run_of(set.shards);
      const auto lost = std::ranges::find_if(set.shards, &ShardPaths::empty);
      if (lost != set.shards.end())
        set.contents.trouble = fmt::format(
            "there is no folder {} in them",
            tier_name_of({static_cast<uint32_t>(lost - set.shards.begin()), count, is_second}, store));
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

void load_state_set(const StateSet& set, std::string_view model, const FlatSpace& space, Offloader& offloader,
                    Log& log) {
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const SavedState& saved = *set.newest();
  require_tensors(saved.path, saved.run, model, space);
  load_shards(
      set, saved.commit, saved.path, [](const std::string&) {}, offloader, log);
  log.info(fmt::format("resumed at step {} from commit {} of {} ({} in {})", saved.run.step, saved.commit,
                       text_of_rank_count(set.shards.size()), saved.path.string(),
                       format_duration(clock.now_ns() - begun_ns)));
}

std::string load_state_set(const StateSet& set, FunctionRef<void(const std::string& text)> require,
                           Offloader& offloader, Log& log) {
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const fs::path& path = set.shards.front().front();
  const RecordLayout& layout = offloader.plan().record_layout;
  if (set.contents.layout != layout) log.info(text_of_conversion(set.contents.layout, layout));
  std::string text = load_shards(set, set.contents.commit, path, require, offloader, log);
  log.info(fmt::format("resumed from commit {} of {} ({} in {})", set.contents.commit,
                       text_of_rank_count(set.shards.size()), path.string(),
                       format_duration(clock.now_ns() - begun_ns)));
  return text;
}

void throw_shortage_beside(const ShortageError& failure) {
  const TierShortage& first = failure.tiers().front();
  if (first.tier != "nvme") throw failure;
  ErrorParts parts = failure.parts();
  parts.advice =
      "free " + format_bytes(first.missing_bytes()) +
      " there: the state that is gone on from stays until this run has a commit of its own; or save a "
      "checkpoint of it with the settings of the run that made it, and go on from that with " +
      Option::discard_commits;
  throw ShortageError(std::move(parts), failure.tiers());
}

HeldSet::HeldSet(const StateSet& set, Log& log) : set_(set), log_(log) {
  for (const ShardPaths& paths : set_.shards) {
    for (const fs::path& path : paths) {
      folders_.push_back(std::make_unique<TierFolder>(path.string(), log));
      folders_.back()->keep_files(true);
    }
  }
}

void HeldSet::remove() {
  try {
    for (const std::unique_ptr<TierFolder>& folder : folders_) folder->remove_manifests();
    for (const std::unique_ptr<TierFolder>& folder : folders_) io::sync_folder(folder->path());
  } catch (const Error& failure) {
    return log_.warning(
        fmt::format("the state that this run went on from stays: {}", failure.in(log_.door())));
  }
  for (const std::unique_ptr<TierFolder>& folder : folders_) folder->keep_files(false);
  // The first path of a shard goes last: without it the others would be taken for a part of another run.
  while (!folders_.empty()) folders_.pop_back();
  if (!set_.has_own_folders()) return;
  for (const ShardPaths& paths : set_.shards) {
    for (const fs::path& path : paths) {
      std::error_code not_empty;
      fs::remove(path, not_empty);
    }
  }
}

void HeldSet::remove_commits(FunctionRef<bool(uint64_t commit)> goes) {
  for (const ShardPaths& paths : set_.shards) {
    if (paths.empty()) continue;
    for (const CommitFile& file : look_at_tier(paths).manifests) {
      std::error_code error;
      if (goes(file.commit) && !fs::remove(file.path, error))
        throw Error(ErrorKind::io, {"cannot remove the commit", file.path.string(), error.message(), ""});
    }
  }
  for (const std::unique_ptr<TierFolder>& folder : folders_) io::sync_folder(folder->path());
}

}  // namespace terrace
